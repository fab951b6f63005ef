"""Clients in their own processes: killed, frozen, and very many of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.up import Up, up
from tests.stopped import stop

PROGRAM = Path(__file__).with_name("client.py")


@contextlib.contextmanager
def client(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert heard(process) == ["ready"]
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def heard(process: subprocess.Popen[bytes]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().decode().split()


def test_a_killed_member_leaves_its_work_to_the_others(tmp_path: Path) -> None:
    async def play(hub: Up) -> None:
        async with tl.connect(hub.address, name="here") as bus:
            with client("member", hub.address) as member:
                for number in range(5):
                    await bus.publish("work", number)
                took = [await asyncio.to_thread(heard, member) for _ in range(5)]
                assert took == [["took", str(number)] for number in range(5)]
                async with bus.subscribe("work", group="workers", ack=True) as messages:
                    member.kill()
                    assert await some(messages, 5) == [0, 1, 2, 3, 4]

    with up(tmp_path) as hub:
        asyncio.run(play(hub))


def test_a_frozen_consumer_slows_its_own_topic_only(tmp_path: Path) -> None:
    """Its policy is block, so publishers to it wait. Publishers to others do not, and the hub does not grow."""
    settings = tl.Settings(backpressure=tl.Backpressure(timeout_s=1.0))

    async def play(hub: Up) -> None:
        async with tl.connect(hub.address, settings=settings) as bus, bus.subscribe("other") as other:
            with client("taker", hub.address, "block") as taker:
                stop(taker.pid)
                payload = bytes(1000)
                with pytest.raises(tl.BackpressureTimeout):
                    await flood(bus, "stream", payload)
                grown = hub.rss_kib()
                for number in range(1000):
                    await bus.publish("other", number)
                assert await some(other, 1000) == list(range(1000))
                with pytest.raises(tl.BackpressureTimeout):
                    await bus.publish("stream", payload)
                assert hub.rss_kib() < grown + 4096
                os.kill(taker.pid, signal.SIGCONT)

                await bus.publish("stream", "last")
                word, accepted, delivered, dropped = await asyncio.to_thread(heard, taker)
                assert word == "books"
                assert int(accepted) == int(delivered) + int(dropped)
                assert int(dropped) == 2, "only those are lost whose publisher was told"

    with up(tmp_path) as hub:
        asyncio.run(play(hub))


async def flood(bus: tl.Bus, topic: str, payload: bytes) -> None:
    while True:
        await bus.publish(topic, payload)


async def some(messages: tl.Stream, count: int) -> list[object]:
    """The next values."""
    found = []
    for _ in range(count):
        message = await messages.recv()
        assert message is not None
        found.append(message.decode())
    return found


def test_a_frozen_consumer_that_drops_slows_nobody(tmp_path: Path) -> None:
    """Its losses are counted, here and in its own books after it reconnects."""
    sent = 50_000

    async def play(hub: Up) -> None:
        async with tl.connect(hub.address) as bus:
            with client("taker", hub.address, "drop_oldest") as taker:
                stop(taker.pid)
                payload = bytes(100)
                for _ in range(sent):
                    await bus.publish("stream", payload)
                await bus.flush()
                os.kill(taker.pid, signal.SIGCONT)
                await bus.publish("stream", "last")
                word, accepted, delivered, dropped = await asyncio.to_thread(heard, taker)
                assert word == "books"
                assert int(accepted) == sent + 1 == int(delivered) + int(dropped)
                assert int(dropped) > 0

    with up(tmp_path) as hub:
        asyncio.run(play(hub))


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_many_subscriptions(tmp_path: Path, count: int) -> None:
    async def play(hub: Up) -> None:
        async with tl.connect(hub.address) as bus:
            streams = [bus.broker.subscribe(f"many.{number}") for number in range(count)]
            for stream in streams:
                await stream.opened()
            for number in range(count):
                await bus.publish(f"many.{number}", number)
            for number, stream in enumerate(streams):
                message = await stream.recv()
                assert message is not None
                assert message.decode() == number
            for stream in streams:
                await stream.aclose()

    with up(tmp_path) as hub:
        asyncio.run(play(hub))


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_many_clients(tmp_path: Path, count: int) -> None:
    """Each with its own connection: all get every message, and leave nothing behind."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def play(hub: Up) -> None:
        buses = [
            tl.connect(hub.address, name=f"client {number}", connection=tl.ConnectionSettings(connect_s=30 + number))
            for number in range(count)
        ]
        for bus in buses:
            await bus.__aenter__()
        streams = [bus.broker.subscribe("all") for bus in buses]
        await asyncio.gather(*(stream.opened() for stream in streams))
        await buses[0].publish("all", "hello")
        for stream in streams:
            message = await stream.recv()
            assert message is not None
        async with tl.connect(hub.address, name="witness") as witness:
            assert (await stats(witness))["clients"] == count + 1
            await asyncio.gather(*(bus.aclose() for bus in buses))

            async def alone() -> bool:
                return bool((await stats(witness))["clients"] == 1)

            while not await alone():
                continue

    try:
        with up(tmp_path) as hub:
            asyncio.run(play(hub))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))


async def stats(bus: tl.Bus) -> dict[str, object]:
    assert isinstance(bus.broker, tl.HubBroker)
    return await bus.broker.hub_stats()
