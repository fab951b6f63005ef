"""More data in one iteration than a connection accepts, and clients that do not read: nothing is stuck or lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.brokers.remote.places import Places
from trunkline.hub.hub import Hub
from trunkline.wire.control import Dropped
from trunkline.wire.notices import MAX_KEPT, Notices


@pytest.mark.parametrize("overflow", ["block", "drop_oldest", "drop_newest"])
@pytest.mark.parametrize(("size", "count"), [(1000, 300), (60_000, 4)])
def test_a_burst_for_many_subscriptions_of_one_client(tmp_path: Path, overflow: str, size: int, count: int) -> None:
    """More than the hub writes at once, less than the kernel buffers: no event reports that there is room."""

    async def run() -> None:
        async with Hub() as hub:
            address = await hub.listen(f"unix://{tmp_path / 'hub.sock'}")
            async with (
                tl.connect(address, name="giver", connection=tl.ConnectionSettings(connect_s=30.0)) as giver,
                tl.connect(address, name="taker", connection=tl.ConnectionSettings(connect_s=30.1)) as taker,
                AsyncExitStack() as stack,
                asyncio.timeout(60),
            ):
                streams = [
                    await stack.enter_async_context(taker.subscribe("burst", overflow=overflow)) for _ in range(8)
                ]
                for number in range(count):
                    await giver.publish("burst", number.to_bytes(4, "big") * (size // 4))
                for stream in streams:
                    for number in range(count):
                        message = await stream.recv()
                        assert message is not None
                        assert message.payload[:4] == number.to_bytes(4, "big")

    asyncio.run(run())


async def test_a_member_that_drops_gets_its_share(trial: object) -> None:
    """It gives unlimited credit, as all subscriptions that drop do."""
    async with Hub() as hub:
        address = await hub.listen("pair:share")
        async with (
            tl.connect(address) as bus,
            bus.subscribe("work", group="g", overflow="drop_oldest") as messages,
        ):
            await bus.publish("work", 5)
            message = await messages.recv()
            assert message is not None
            assert message.decode() == 5


def drop(position: int, first: int, count: int, topic: str = "t", reason: str = "full") -> Dropped:
    return Dropped(
        subscription=1,
        ranges=[(first, first + count - 1)],
        reason=reason,
        topic=topic,
        count=count,
        origin=7,
        position=position,
    )


def test_what_follows_on_each_other_is_one_notice() -> None:
    notices = Notices()
    for number in range(10_000):
        assert not list(notices.add(drop(number, first=number + 1, count=1)))
    (one,) = notices.take()
    assert (one.ranges, one.count, one.position) == ([(1, 10_000)], 10_000, 0)
    assert not notices


def test_another_reason_is_another_notice() -> None:
    notices = Notices()
    assert not list(notices.add(drop(0, 1, 1)))
    assert not list(notices.add(drop(1, 2, 1, reason="gone")))
    assert [notice.reason for notice in notices.take()] == ["full", "gone"]


def test_no_more_are_kept_than_there_is_place_for() -> None:
    notices = Notices()
    out = [notice for number in range(MAX_KEPT + 5) for notice in notices.add(drop(0, number + 1, 1, f"t{number}"))]
    assert [notice.topic for notice in out] == [f"t{number}" for number in range(5)]
    assert len(notices) == MAX_KEPT


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.sampled_from("ab")), max_size=30))
def test_joined_or_not_they_say_the_same(steps: list[tuple[int, int, str]]) -> None:
    """Each step: some are dropped, after some that were not, on a topic. Nothing is counted as missing twice."""
    notices, whole = Notices(), Places()
    said: list[Dropped] = []
    given_: list[Dropped] = []
    positions = {"a": 0, "b": 0}
    seq = 1
    for count, between, topic in steps:
        positions[topic] += between
        seq += between
        given_.append(drop(positions[topic], seq, count, topic))
        positions[topic] += count
        seq += count
        said += notices.add(given_[-1])
    said += notices.take()
    assert sum(notice.count for notice in said) == sum(notice.count for notice in given_)
    assert sorted(seqs(said)) == sorted(seqs(given_))
    missing = [whole.passed(n.origin, n.topic, n.priority, n.position, n.count) for n in said]
    plain = Places()
    assert sum(missing) == sum(plain.passed(n.origin, n.topic, n.priority, n.position, n.count) for n in given_)


def seqs(notices: list[Dropped]) -> list[int]:
    return [seq for notice in notices for first, last in notice.ranges for seq in range(first, last + 1)]
