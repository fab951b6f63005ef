"""Reports of a subscription: each number that arrived is reported once, with its fate, in any order of events."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from trunkline import Fate, Message
from trunkline.brokers.remote.adapter import FateRange
from trunkline.brokers.remote.reporter import Reporter
from trunkline.testing import Simulation, simulate

steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 3), st.integers(0, 2)),
        st.tuples(st.just("arrive late"), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("take"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("acknowledge"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("filter"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("report"), st.just(0), st.just(0)),
        st.tuples(st.just("reconnect"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Here:
    """An inbox, and the broker that it reports to."""

    def __init__(self) -> None:
        self.queue: deque[Message] = deque()
        self.books = SimpleNamespace(running=[])
        self.rows: list[FateRange] = []

    def unfinished(self) -> list[Message]:
        return list(self.queue)

    def report(self, subscription: int, ranges: list[FateRange], letters: list[Any], *, asked: bool) -> None:
        self.rows += ranges


@given(steps)
def test_each_number_is_reported_once_as_it_ended(events: list[tuple[str, int, int]]) -> None:
    async def run(simulation: Simulation) -> None:
        here = Here()
        inbox = cast(Any, here)
        reporter = Reporter(inbox, 1, inbox, 0.1)
        truth: dict[int, Fate] = {}
        passed: list[int] = []
        number = 0
        for what, count, gap in events:
            if what == "arrive":
                if gap:
                    passed += range(number + 1, number + gap + 1)
                first = number + gap + 1
                number = first + count - 1
                reporter.arrived(first, number)
                here.queue.extend(Message(topic="t", seq=seq) for seq in range(first, number + 1))
            elif what == "arrive late" and passed:
                seq = passed.pop()
                reporter.arrived(seq, seq)
                here.queue.append(Message(topic="t", seq=seq))
            elif what == "take" and here.queue:
                taken = [here.queue.popleft().seq for _ in range(min(count, len(here.queue)))]
                truth |= dict.fromkeys(taken, Fate.DELIVERED)
                reporter.delivered(inbox, min(taken), max(taken), len(taken), 0)
            elif what in ("acknowledge", "filter") and count < len(here.queue):
                message = here.queue[count]
                del here.queue[count]
                if what == "filter":
                    truth[message.seq] = Fate.FILTERED
                    reporter.settled(inbox, message, Fate.FILTERED, "not wanted", 0)
                else:
                    truth[message.seq] = Fate.DELIVERED
                    reporter.delivered_one(inbox, message, 0)
            elif what == "report":
                reporter.report()
            elif what == "reconnect":
                # A report may not have arrived: it is sent again.
                here.rows.clear()
                reporter.resume()
        reporter.close()
        told = [
            (seq, row.fate)
            for row in here.rows
            if row.fate is not Fate.IN_FLIGHT
            for seq in range(row.first, row.last + 1)
        ]
        assert len(told) == len(dict(told)), "none twice"
        assert dict(told) == truth

    simulate(run)
