"""Limits in bytes: large batches are split, refused, or dropped with a reason; no connection is closed for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hub_process import running_hub
from tests.hub.lines import listen
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.errors import HeadersTooLarge
from trunkline.message import MAX_HEADER_BYTES

MEGABYTE = 1_000_000
DEADLINE_S = 60.0


def test_large_messages_for_a_busy_member_come_in_frames_it_can_take(tmp_path: Path) -> None:
    """14 messages of 9 MB once made one frame of 113 MB, and the member's connection was closed."""

    async def run(address: str) -> None:
        async with tl.connect(address, name="worker") as worker, tl.connect(address, name="boss") as boss:
            async with worker.subscribe("jobs.*", group="workers", ack=True) as jobs, asyncio.timeout(DEADLINE_S):
                for number in range(14):
                    await boss.publish("jobs.large", bytes([number]) * (9 * MEGABYTE))
                got: list[tuple[int, int]] = []
                while len(got) < 14:
                    message = await jobs.recv()
                    assert message is not None
                    got.append((message.payload[0], len(message.payload)))
                    jobs.ack(message)
                assert got == [(number, 9 * MEGABYTE) for number in range(14)]
            assert worker.broker.metrics().connects == 1  # type: ignore[attr-defined]

    with running_hub(tmp_path, listen=listen(tmp_path)) as hub:
        asyncio.run(run(hub.address))
        hub.end()


def test_headers_are_refused_before_they_leave(tmp_path: Path) -> None:
    async def run(address: str) -> None:
        async with (
            tl.connect(address, name="client") as bus,
            asyncio.timeout(DEADLINE_S),
            bus.subscribe("t") as messages,
        ):
            with pytest.raises(HeadersTooLarge, match="70,000,063 bytes"):
                await bus.publish("t", 1, headers={"x": "x" * 70 * MEGABYTE})
            await bus.publish("t", 2)
            message = await messages.recv()
            assert message is not None
            assert message.decode() == 2

    with running_hub(tmp_path, listen=listen(tmp_path), journal=tmp_path / "journal") as hub:
        asyncio.run(run(hub.address))
        hub.end()


def test_many_headers_do_not_make_one_frame(tmp_path: Path) -> None:
    """2,000 messages with 40 KB of headers each are 80 MB: more than a frame may have."""

    async def run(address: str) -> None:
        headers = {"x": "x" * (MAX_HEADER_BYTES - 20_000)}
        async with tl.connect(address, name="client") as bus, asyncio.timeout(DEADLINE_S):
            async with bus.subscribe("t", capacity=5000) as messages:
                await bus.publish_many("t", range(2000), headers=headers)
                got = [await messages.recv() for _ in range(2000)]
                assert [message.decode() for message in got if message is not None] == list(range(2000))
            assert bus.broker.metrics().connects == 1  # type: ignore[attr-defined]

    with running_hub(tmp_path, listen=listen(tmp_path)) as hub:
        asyncio.run(run(hub.address))
        hub.end()


@pytest.mark.parametrize("group", [None, "workers"])
def test_a_client_that_takes_small_frames_gets_what_fits(tmp_path: Path, group: str | None) -> None:
    async def run(address: str) -> None:
        small = ConnectionSettings(max_frame_bytes=256 * 1024)
        async with (
            tl.connect(address, name="large") as large,
            tl.connect(address, name="small", connection=small) as modest,
        ):
            async with modest.subscribe("t", group=group) as messages, asyncio.timeout(DEADLINE_S):
                sizes = [100_000, 400_000, 200_000, 100_000]
                await large.publish_many("t", [b"x" * size for size in sizes])
                await large.publish("t", b"end")
                got: list[int] = []
                while not got or got[-1] != 3:
                    message = await messages.recv()
                    assert message is not None
                    got.append(len(message.payload))
                assert got == [100_000, 200_000, 100_000, 3]
            metrics = modest.broker.metrics()  # type: ignore[attr-defined]
            assert (metrics.connects, metrics.malformed) == (1, 0)
            if group is None:
                account = modest.accounts()[""]
                assert (account.accepted, account.delivered, account.dropped) == (5, 4, 1)

    with running_hub(tmp_path, listen=listen(tmp_path)) as hub:
        asyncio.run(run(hub.address))
        hub.end()


@pytest.mark.parametrize("scheme", ["unix", "zmq+ipc"])
def test_who_is_one_too_many_hears_why_and_gets_in_later(tmp_path: Path, scheme: str) -> None:
    async def run(address: str) -> None:
        impatient = ConnectionSettings(connect_s=3.0)
        async with tl.connect(address, name="first") as first:
            await first.publish("t", 1)
            async with tl.connect(address, name="second", connection=impatient) as second:
                with pytest.raises(tl.Refused, match="1 client connected already"):
                    await second.publish("t", 2)
        async with tl.connect(address, name="third") as third, asyncio.timeout(15.0):
            await third.publish("t", 3)

    place = f"{scheme}://{tmp_path}/hub.sock"
    with running_hub(tmp_path, listen=(place,), settings={"max_clients": 1}) as hub:
        asyncio.run(run(place))
        hub.end()
