"""The inbox: order by priority, each policy when it is full, and publishers that wait for room."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import Backpressure, BackpressureTimeout, Congested, Fate, InboxFull, Message, Overflow
from trunkline.delivery.inbox import ADMIT_AFTER_S, ADMIT_ROOM, Inbox
from trunkline.delivery.parking import Parked
from trunkline.testing import Simulation, simulate

PATIENT = Backpressure(wait_s=0.1, timeout_s=30)


class Box:
    """An inbox and its messages. After every step its books must balance."""

    def __init__(
        self,
        simulation: Simulation,
        capacity: int = 3,
        overflow: Overflow = Overflow.BLOCK,
        max_parked: int = 1000,
    ) -> None:
        self.inbox = Inbox("box", ">", simulation.time_ns, capacity=capacity, overflow=overflow, max_parked=max_parked)
        self._time_ns = simulation.time_ns
        self._seqs = itertools.count(1)

    def message(self, text: str, priority: int = 50, ttl_s: float | None = None) -> Message:
        return Message(
            topic="t",
            payload=text.encode(),
            seq=next(self._seqs),
            priority=priority,
            ttl_s=ttl_s,
            timestamp_ns=self._time_ns(),
        )

    def offer(self, message: Message) -> Parked | None:
        try:
            waiting = self.inbox.offer(message)
        finally:
            self.balanced()
        assert waiting is None or isinstance(waiting, Parked)
        return waiting

    def put(self, *texts: str, priority: int = 50, ttl_s: float | None = None) -> list[Parked]:
        """Offer each; return those that must wait."""
        offered = [self.offer(self.message(text, priority, ttl_s)) for text in texts]
        return [parked for parked in offered if parked is not None]

    def pull(self) -> str | None:
        message = self.inbox.pull()
        if message is not None:
            self.inbox.count_delivered(message)
        self.balanced()
        return None if message is None else text(message)

    def pull_all(self) -> list[str]:
        return list(iter(self.pull, None))

    def balanced(self) -> None:
        account = self.inbox.account()
        assert account.balanced, account


def text(message: Message) -> str:
    return bytes(message.payload).decode()


def numbers(*span: int) -> list[str]:
    return [str(number) for number in range(*span)]


# Order


@pytest.mark.parametrize("overflow", Overflow)
async def test_highest_priority_first_and_first_in_first_out_within_one(
    simulation: Simulation, overflow: Overflow
) -> None:
    box = Box(simulation, capacity=20, overflow=overflow)
    for priority in (50, 25, 100, 50, 0, 75, 51, 49):
        box.put(f"{priority} a", f"{priority} b", priority=priority)
    levels = (100, 75, 51, 50, 50, 49, 25, 0)
    assert [text(message) for message in box.inbox.messages()] == box.pull_all()
    assert box.inbox.account().delivered == 16

    for priority in (50, 25, 100, 50, 0, 75, 51, 49):
        box.put(f"{priority} a", f"{priority} b", priority=priority)
    assert box.pull_all() == [f"{level} {which}" for level in levels for which in "ab"]


async def test_what_comes_later_with_a_higher_priority_is_taken_next(simulation: Simulation) -> None:
    box = Box(simulation)
    box.put("low", priority=10)
    box.put("normal")
    assert box.pull() == "normal"
    box.put("high", priority=90)
    assert box.pull_all() == ["high", "low"]


async def test_what_is_returned_goes_first_within_its_priority(simulation: Simulation) -> None:
    box = Box(simulation, capacity=5)
    box.put("1", "2")
    box.put("high", priority=90)
    for expected in ("high", "1"):
        message = box.inbox.pull()
        assert message is not None
        assert text(message) == expected
        box.inbox.return_to_front(message)
        box.balanced()
        if expected == "high":
            assert box.pull() == "high"
    assert box.pull_all() == ["1", "2"]


# Full


async def test_block_parks_what_finds_no_room(simulation: Simulation) -> None:
    box = Box(simulation, capacity=2)
    waiting = box.put("1", "2", "3", "4")
    assert [text(parked.message) for parked in waiting] == ["3", "4"]
    assert (box.inbox.depth, box.inbox.in_flight) == (2, 4)
    assert box.inbox.account().dropped == 0
    assert [text(message) for message in box.inbox.messages()] == ["1", "2", "3", "4"]


async def test_block_lets_in_by_order_of_coming_and_gives_out_by_priority(simulation: Simulation) -> None:
    box = Box(simulation, capacity=2)
    box.put("1", "2")
    normal = box.put("3")
    critical = box.put("urgent", priority=100)
    assert [box.pull(), box.pull()] == ["1", "2"]
    assert normal[0].entered.done()
    assert critical[0].entered.done()
    assert box.pull_all() == ["urgent", "3"]


@pytest.mark.parametrize(
    ("there", "newcomer", "left"),
    [
        ([50, 50, 50], 50, "1 2 new"),
        ([50, 50, 50], 75, "new 1 2"),
        ([50, 50, 50], 25, "0 1 2"),
        ([25, 50, 25], 50, "1 new 2"),
        ([25, 25, 10], 25, "0 1 new"),
        ([75, 50, 100], 50, "2 0 new"),
        ([75, 100, 75], 75, "1 2 new"),
        ([75, 100, 75], 50, "1 0 2"),
        ([0, 100, 50], 0, "1 2 new"),
    ],
)
async def test_drop_oldest_drops_the_oldest_of_the_lowest_unless_that_outranks_the_newcomer(
    simulation: Simulation, there: list[int], newcomer: int, left: str
) -> None:
    box = Box(simulation, overflow=Overflow.DROP_OLDEST)
    for number, priority in enumerate(there):
        box.put(str(number), priority=priority)
    assert not box.put("new", priority=newcomer)
    assert box.inbox.depth == 3
    assert box.pull_all() == left.split()
    assert box.inbox.account().dropped == 1


@pytest.mark.parametrize("priority", [0, 50, 100])
async def test_drop_newest_drops_the_newcomer_whatever_its_priority(simulation: Simulation, priority: int) -> None:
    box = Box(simulation, overflow=Overflow.DROP_NEWEST)
    box.put("1", "2", "3")
    late = box.message("late", priority)
    assert box.offer(late) is None
    assert box.pull_all() == ["1", "2", "3"]
    outcome = box.inbox.outcome_of(late)
    assert outcome is not None
    assert (outcome.fate, outcome.reason) == (Fate.DROPPED, "drop_newest: the inbox is full (3)")


@pytest.mark.parametrize("priority", [0, 50, 100])
async def test_reject_tells_the_publisher(simulation: Simulation, priority: int) -> None:
    box = Box(simulation, overflow=Overflow.REJECT)
    box.put("1", "2", "3")
    late = box.message("late", priority)
    with pytest.raises(InboxFull) as refusal:
        box.offer(late)
    assert (refusal.value.subscriber, refusal.value.capacity, refusal.value.retryable) == ("box", 3, True)
    assert box.pull_all() == ["1", "2", "3"]
    outcome = box.inbox.outcome_of(late)
    assert outcome is not None
    assert (outcome.fate, outcome.reason) == (Fate.DROPPED, "rejected: the inbox is full (3)")
    assert not box.put("room again", priority=priority)


async def test_the_first_loss_is_logged_once(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    box = Box(simulation, overflow=Overflow.DROP_OLDEST)
    box.put(*numbers(10))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the inbox of box is full (3), and messages are lost: drop_oldest"
    ]


@given(
    capacity=st.integers(1, 5),
    overflow=st.sampled_from([Overflow.DROP_OLDEST, Overflow.DROP_NEWEST, Overflow.REJECT]),
    steps=st.lists(st.one_of(st.none(), st.sampled_from([0, 25, 49, 50, 51, 75, 100])), max_size=40),
)
def test_does_what_a_sorted_list_would(capacity: int, overflow: Overflow, steps: list[int | None]) -> None:
    """A number is a message of that priority, None takes one."""

    async def main(simulation: Simulation) -> None:
        box = Box(simulation, capacity, overflow)
        waiting: list[tuple[int, int, str]] = []  # by priority downwards, then by time of coming
        dropped = 0
        for number, priority in enumerate(steps):
            if priority is None:
                assert box.pull() == (waiting.pop(0)[2] if waiting else None)
                continue
            try:
                box.put(str(number), priority=priority)
            except InboxFull:
                assert overflow is Overflow.REJECT
            if len(waiting) == capacity:
                dropped += 1
                lowest = waiting[-1][0]
                if overflow is not Overflow.DROP_OLDEST or -lowest > priority:
                    continue
                waiting.remove(next(each for each in waiting if each[0] == lowest))
            waiting.append((-priority, number, str(number)))
            waiting.sort()
        assert box.inbox.account().dropped == dropped
        assert box.pull_all() == [each[2] for each in waiting]

    simulate(main)


# Waiting for room


async def test_waiting_publishers_enter_in_the_order_in_which_they_came(simulation: Simulation) -> None:
    box = Box(simulation, capacity=2)
    returned: list[str] = []

    async def publish(name: str) -> None:
        for parked in box.put(name):
            await parked.wait(PATIENT)
        returned.append(name)

    taken: list[str] = []
    async with asyncio.TaskGroup() as group:
        for name in numbers(8):
            group.create_task(publish(name))
            await asyncio.sleep(0.001)
        while len(taken) < 8:
            taken += filter(None, [box.pull()])
            await asyncio.sleep(0.001)
            # Publishers that enter in one iteration may return in any order, but none before its message is in.
            assert set(returned) == set(numbers(min(8, len(taken) + box.inbox.depth)))
    assert taken == numbers(8)


async def test_one_wake_up_for_many_places(simulation: Simulation) -> None:
    """While publishers have not waited long, a large inbox accepts many of them at once."""
    box = Box(simulation, capacity=200)
    waiting = box.put(*numbers(300))
    assert len(waiting) == 100
    for _ in range(ADMIT_ROOM - 1):
        box.pull()
    assert not any(parked.entered.done() for parked in waiting)
    box.pull()
    assert [parked.entered.done() for parked in waiting] == [True] * ADMIT_ROOM + [False] * (100 - ADMIT_ROOM)
    assert box.pull_all() == numbers(ADMIT_ROOM, 300)


async def test_who_has_waited_long_enters_at_the_first_place(simulation: Simulation) -> None:
    box = Box(simulation, capacity=200)
    waiting = box.put(*numbers(202))
    await asyncio.sleep(ADMIT_AFTER_S)
    box.pull()
    assert [parked.entered.done() for parked in waiting] == [True, False]


@pytest.mark.parametrize("capacity", [2, 10, 200])
async def test_room_is_used_within_50_ms_even_if_nobody_takes_any_more(simulation: Simulation, capacity: int) -> None:
    box = Box(simulation, capacity=capacity)
    waiting = box.put(*numbers(capacity + 2))
    assert box.pull() == "0"
    async with asyncio.timeout(ADMIT_AFTER_S + 0.001):
        await waiting[0].wait(PATIENT)
    assert simulation.now() <= ADMIT_AFTER_S
    assert not waiting[1].entered.done()
    assert box.inbox.free == 0
    box.balanced()
    box.inbox.close()


async def test_an_emptied_inbox_lets_all_in_that_fit(simulation: Simulation) -> None:
    box = Box(simulation, capacity=3)
    waiting = box.put(*numbers(7))
    assert [box.pull() for _ in range(3)] == ["0", "1", "2"]
    assert [parked.entered.done() for parked in waiting] == [True, True, True, False]
    assert box.pull_all() == ["3", "4", "5", "6"]


async def test_capacity_of_one(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1)
    waiting = box.put(*numbers(5))
    assert len(waiting) == 4
    for number in range(5):
        assert sum(parked.entered.done() for parked in waiting) == number
        assert box.pull() == str(number)
    assert box.pull() is None


async def test_a_waiting_publisher_is_woken_not_polled(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1)
    (parked,) = box.put("1", "2")
    waiting = asyncio.create_task(parked.wait(Backpressure(wait_s=10, timeout_s=60)))
    await asyncio.sleep(3)
    assert not waiting.done()
    box.pull()
    await waiting
    assert simulation.now() == 3


async def test_nobody_waits_longer_than_the_timeout(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1)
    (parked,) = box.put("1", "2")
    with debug_times(simulation) as times, pytest.raises(BackpressureTimeout) as refusal:
        await parked.wait(Backpressure(wait_s=0.1, timeout_s=1))
    assert simulation.now() == pytest.approx(1)
    assert times == pytest.approx([0.1, 0.3, 0.7]), "each stretch is twice as long as the one before"
    assert (refusal.value.subscriber, refusal.value.waited_s, refusal.value.retryable) == ("box", 1, True)
    box.balanced()
    outcome = box.inbox.outcome_of(parked.message)
    assert outcome is not None
    assert (outcome.fate, outcome.reason) == (Fate.DROPPED, "backpressure timeout after 1 s")
    assert box.pull_all() == ["1"]


async def test_the_timeout_counts_from_the_moment_of_parking(simulation: Simulation) -> None:
    """A publisher may have waited elsewhere before it waits here: its message counts as parked in any case."""
    box = Box(simulation, capacity=1)
    (parked,) = box.put("1", "2")
    await asyncio.sleep(0.75)
    with pytest.raises(BackpressureTimeout):
        await parked.wait(Backpressure(wait_s=0.1, timeout_s=1))
    assert simulation.now() == pytest.approx(1)
    box.balanced()


@contextmanager
def debug_times(simulation: Simulation) -> Iterator[list[float]]:
    """The virtual times at which the delivery log has entries."""
    times: list[float] = []

    class Clock(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            times.append(simulation.now())

    log, clock = logging.getLogger("trunkline.delivery"), Clock()
    level = log.level
    log.addHandler(clock)
    log.setLevel(logging.DEBUG)
    try:
        yield times
    finally:
        log.removeHandler(clock)
        log.setLevel(level)


async def test_too_many_waiting_is_congested(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1, max_parked=2)
    assert len(box.put("1", "2", "3")) == 2
    late = box.message("4")
    with pytest.raises(Congested) as refusal:
        box.offer(late)
    assert (refusal.value.subscriber, refusal.value.waiting, refusal.value.retryable) == ("box", 2, True)
    outcome = box.inbox.outcome_of(late)
    assert outcome is not None
    assert (outcome.fate, outcome.reason) == (Fate.DROPPED, "congested: 2 publishes already wait for room")
    assert box.pull_all() == ["1", "2", "3"]


async def test_a_cancelled_wait_is_dropped_and_the_others_keep_their_places(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1)
    waits = [asyncio.create_task(parked.wait(PATIENT)) for parked in box.put("1", "2", "3", "4")]
    await asyncio.sleep(0.01)
    waits[1].cancel()
    await asyncio.wait([waits[1]])
    assert waits[1].cancelled()
    box.balanced()
    assert box.inbox.account().dropped == 1
    assert box.pull_all() == ["1", "2", "4"]
    await waits[0]
    await waits[2]


async def test_cancelled_in_the_moment_of_entering_it_stays_in(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1)
    (parked,) = box.put("1", "2")
    waiting = asyncio.create_task(parked.wait(PATIENT))
    await asyncio.sleep(0.01)
    assert box.pull() == "1"
    waiting.cancel()
    await asyncio.wait([waiting])
    box.balanced()
    assert box.pull_all() == ["2"]
    assert box.inbox.account().dropped == 0


async def test_who_gives_up_waiting_leaves_room_for_the_short_cut(simulation: Simulation) -> None:
    """While a publisher waits, `room` is 0, so that none overtakes it. Afterwards it is not."""
    box = Box(simulation, capacity=2)
    (parked,) = box.put("1", "2", "3")
    assert (box.inbox.room, box.inbox.needs_pull) == (0, True)
    box.inbox.unpark(parked, "gave up")
    assert (box.inbox.room, box.inbox.needs_pull) == (2, False)
    box.inbox.unpark(parked, "twice is fine")
    box.balanced()


# Time to live


async def test_what_is_past_its_ttl_when_taken_is_expired(simulation: Simulation) -> None:
    box = Box(simulation, capacity=10)
    short = box.message("short", ttl_s=1)
    box.offer(short)
    box.put("long", ttl_s=1.001)
    box.put("for ever")
    await asyncio.sleep(1)
    assert box.pull_all() == ["long", "for ever"]
    account = box.inbox.account()
    assert (account.delivered, account.expired, account.in_flight) == (2, 1, 0)
    outcome = box.inbox.outcome_of(short)
    assert outcome is not None
    assert (outcome.fate, outcome.reason) == (Fate.EXPIRED, "its ttl of 1 s had passed when it was taken")


async def test_ttl_goes_by_the_wall_clock(simulation: Simulation) -> None:
    box = Box(simulation, capacity=10)
    box.put("1", ttl_s=60)
    simulation.jump_wall(-3600)
    await asyncio.sleep(61)
    assert box.pull() == "1"
    box.put("2", ttl_s=60)
    simulation.jump_wall(3600)
    assert box.pull() is None
    assert box.inbox.account().expired == 1


async def test_expired_messages_make_room_for_those_who_wait(simulation: Simulation) -> None:
    box = Box(simulation, capacity=2)
    box.put("1", "2", ttl_s=0.01)
    waiting = box.put("3", "4", "5")
    await asyncio.sleep(0.02)
    assert box.pull() == "3"
    assert box.inbox.account().expired == 2
    assert box.pull_all() == ["4", "5"]
    assert all(parked.entered.done() for parked in waiting)


async def test_what_waits_for_room_expires_too(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1)
    box.put("1")
    (parked,) = box.put("2", ttl_s=1)
    await asyncio.sleep(2)
    assert box.pull_all() == ["1"]
    assert parked.entered.done()
    assert box.inbox.account().expired == 1


# Gates


async def test_a_gate_filters_before_there_is_a_question_of_room(simulation: Simulation) -> None:
    box = Box(simulation, capacity=1, overflow=Overflow.REJECT)
    box.inbox.gate = lambda message: "odd" if int(text(message)) % 2 else None
    odd = box.message("1")
    box.offer(odd)
    box.put("2", "3")
    with pytest.raises(InboxFull):
        box.put("4")
    assert box.pull_all() == ["2"]
    account = box.inbox.account()
    assert (account.accepted, account.filtered, account.dropped) == (4, 2, 1)
    outcome = box.inbox.outcome_of(odd)
    assert outcome is not None
    assert (outcome.fate, outcome.reason) == (Fate.FILTERED, "odd")


# Consumers that wait


async def test_each_message_wakes_one_sleeper(simulation: Simulation) -> None:
    box = Box(simulation, capacity=10)
    got: list[str] = []

    async def take() -> None:
        while (one := box.pull()) is None:
            await box.inbox.sleep()
        got.append(one)

    takers = [asyncio.create_task(take()) for _ in range(3)]
    await asyncio.sleep(0.01)
    box.put("1", "2")
    await asyncio.sleep(0.01)
    assert sorted(got) == ["1", "2"]
    box.put("3")
    await asyncio.gather(*takers)
    assert len(box.inbox.sleepers) == 0


async def test_a_sleeper_that_is_woken_and_cancelled_at_once_passes_it_on(simulation: Simulation) -> None:
    box = Box(simulation, capacity=10)
    first, second = (asyncio.create_task(box.inbox.sleep()) for _ in range(2))
    await asyncio.sleep(0.01)
    box.put("1")
    woken = first if len(box.inbox.sleepers) == 1 and not first.done() else second
    woken.cancel()
    done, _ = await asyncio.wait([first, second], timeout=1)
    assert done == {first, second}, "the other sleeper missed the message"
    assert [task.cancelled() for task in (first, second)].count(True) <= 1


async def test_a_cancelled_sleeper_leaves_nothing_behind(simulation: Simulation) -> None:
    box = Box(simulation)
    waiting = asyncio.create_task(box.inbox.sleep())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert len(box.inbox.sleepers) == 0


# The end


async def test_closing_lets_everyone_go(simulation: Simulation) -> None:
    box = Box(simulation, capacity=2)
    waits = [asyncio.create_task(parked.wait(PATIENT)) for parked in box.put(*numbers(5))]
    await asyncio.sleep(0.01)
    box.inbox.close()
    box.inbox.close()
    await asyncio.gather(*waits)
    box.balanced()
    assert box.inbox.account().dropped == 3
    assert not box.put("late")
    assert box.inbox.account().dropped == 4
    assert box.pull_all() == ["0", "1"]


async def test_closing_wakes_all_who_sleep(simulation: Simulation) -> None:
    box = Box(simulation)
    waits = [asyncio.create_task(box.inbox.sleep()) for _ in range(3)]
    await asyncio.sleep(0.01)
    box.inbox.close()
    await asyncio.gather(*waits)


async def test_discard_takes_everything_out_in_order(simulation: Simulation) -> None:
    box = Box(simulation, capacity=10)
    box.put("normal")
    box.put("low", priority=1)
    box.put("high", priority=99, ttl_s=60)
    box.inbox.close()
    left = box.inbox.discard()
    assert [text(message) for message in left] == ["high", "normal", "low"]
    assert (box.inbox.depth, box.inbox.in_flight, box.inbox.needs_pull) == (0, 0, False)
    assert box.inbox.pull() is None
    for message in left:
        box.inbox.settle(message, Fate.DROPPED, "discarded")
    box.balanced()
