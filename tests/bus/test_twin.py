"""`Bus.publish` has an inlined copy of the publish path: both must behave the same for all messages and subscribers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trunkline as tl
from tests.hub.hubs import Place
from trunkline.bus import bus as bus_module
from trunkline.delivery import route
from trunkline.errors import TrunklineError
from trunkline.journal import Journal, JournalBroker
from trunkline.testing import Simulation, simulate, world

pytestmark = pytest.mark.usefixtures("both_ways", "short_runs")

TOPICS = ("a", "b", "c")
SMALL = tl.Settings(
    history=tl.History(max_messages=5, max_payload_bytes=20),
    backpressure=tl.Backpressure(timeout_s=0.5),
    max_message_bytes=60,
)

subscribers = st.lists(
    st.tuples(
        st.sampled_from([*TOPICS, ">"]),
        st.sampled_from([None, "g"]),
        st.sampled_from([tl.Overflow.REJECT, tl.Overflow.DROP_OLDEST, tl.Overflow.DROP_NEWEST, tl.Overflow.BLOCK]),
        st.integers(1, 4),
    ),
    max_size=4,
)
payloads = st.one_of(st.binary(max_size=70), st.integers(), st.text(max_size=5))
in_a_row = st.tuples(st.sampled_from(TOPICS), st.lists(payloads, min_size=1, max_size=5))
publishes = st.lists(in_a_row, max_size=5).map(lambda rows: [(topic, each) for topic, row in rows for each in row])


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, runs begin with the second message in a row, and are short."""
    monkeypatch.setattr(bus_module, "WATCH", 0)
    monkeypatch.setattr(route, "MAX_RUN", 2)


class Observed(dict[str, Any]):
    """The visible state of a bus after it has published."""


async def published(bus: tl.Bus, wanted: Any, sent: Any, *, twin: bool) -> Observed:
    streams = []
    for pattern, group, overflow, capacity in wanted:
        options: dict[str, Any] = {"overflow": overflow, "capacity": capacity}
        if group is not None:
            options["group"] = group
        streams.append(await bus.subscribe(pattern, **options).open())
    raised: list[str] = []
    ids: list[str] = []
    for index, (topic, payload) in enumerate(sent):
        if index == 5:
            # From now on its topics are known, and what is published in a row is a run.
            await bus.flush()
        try:
            # A field that changes nothing: the message takes the whole way.
            fields: dict[str, Any] = {} if twin else {"sender": bus.name}
            ids.append(await bus.publish(topic, payload, **fields))
        except TrunklineError as error:
            raised.append(type(error).__name__)
    await bus.flush()
    seen = Observed(
        raised=raised,
        history=[_seen(message) for message in bus.history()],
        explained=[str(await bus.explain(message_id)).partition("\n")[2] for message_id in ids],
        inboxes=[],
    )
    for stream in streams:
        seen["inboxes"].append([])
        while stream.inbox.depth:
            message = stream.try_recv()
            seen["inboxes"][-1].append(_seen(message))
    stats = bus.stats()
    seen["counted"] = [
        stats.total_messages,
        stats.total_refused,
        stats.unrouted,
        dict(stats.per_sender),
        dict(stats.per_topic),
        stats.account,
    ]
    for stream in streams:
        await stream.aclose()
    return seen


def _seen(message: tl.Message) -> tuple[Any, ...]:
    return message.topic, message.payload, message.seq, message.sender, message.content_type, message.encoding


def run(below: str, wanted: Any, sent: Any, *, twin: bool) -> Observed:
    async def main(simulation: Simulation) -> Observed:
        there = world(simulation)
        with tempfile.TemporaryDirectory() as folder:
            if below == "hub":
                place = Place(there)
                await place.start()
                try:
                    async with tl.connect(place.address, world=there, settings=SMALL) as bus:
                        return await published(bus, wanted, sent, twin=twin)
                finally:
                    await place.stop()
            if below == "journal":
                journal = Journal(Path(folder), world=there, threaded=False)
                broker: tl.Broker = JournalBroker(journal, SMALL, owns_journal=True)
            else:
                broker = tl.MemoryBroker(there, SMALL)
            async with tl.Bus(broker, settings=SMALL, owns_broker=True) as bus:
                return await published(bus, wanted, sent, twin=twin)

    return simulate(main)


@pytest.mark.parametrize("below", ["memory", "journal", "hub"])
@settings(max_examples=40, deadline=None)
@given(wanted=subscribers, sent=publishes)
def test_the_twin_does_what_the_whole_way_does(below: str, wanted: Any, sent: Any) -> None:
    assert run(below, wanted, sent, twin=True) == run(below, wanted, sent, twin=False)
