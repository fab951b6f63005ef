"""One kind of malicious input at a time: the hub refuses it, or handles it without growing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.hub.attacks import Attacker, framed, said
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.lines import MAX_GROWTH_BYTES, RULES, Line, healthy, listen, stats_of
from trunkline.wire import control, frames
from trunkline.wire.frames import LENGTH, PublishHead


def against(tmp_path: Path, attack: Callable[[RunningHub, tl.Bus], Awaitable[None]], **settings: Any) -> None:
    """Run one attack. Afterwards the hub must be healthy, and not much larger."""

    async def run(hub: RunningHub) -> None:
        async with tl.connect(hub.address, name="watcher") as bus:
            await stats_of(bus)
            before = hub.rss_bytes()
            await attack(hub, bus)
            await healthy(hub, bus, others=0)
            assert hub.rss_bytes() - before < MAX_GROWTH_BYTES / 2

    with running_hub(tmp_path, listen=listen(tmp_path), rules=RULES, settings=settings) as hub:
        asyncio.run(run(hub))
        hub.end()


async def counted(bus: tl.Bus, name: str) -> int:
    count: int = (await stats_of(bus))["counts"].get(name, 0)
    return count


@pytest.mark.parametrize("length", [0, 2**16 + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("greeted", [True, False])
def test_a_length_that_cannot_be(tmp_path: Path, length: int, greeted: bool) -> None:
    """Before HELLO, the hub accepts no frame larger than a HELLO."""

    async def attack(hub: RunningHub, bus: tl.Bus) -> None:
        line = await Line.open(hub)
        if greeted:
            line.send(Attacker(1).hello())
            await line.hear_answer(1)
        line.writer.write(LENGTH.pack(length) + b"x" * 100)
        if greeted and length == 2**16 + 1:
            # That is allowed now: it only has to come.
            line.writer.write(b"x" * (length - 100))
            assert (await line.hear())["code"] == "unknown_kind"
        else:
            assert (await line.hear())["code"] == "too_large"
            assert (await line.hear())["type"] == "GOODBYE"
            with pytest.raises(EOFError):
                await line.hear()
        assert await counted(bus, "malformed") == 1
        await line.close()

    against(tmp_path, attack)


def test_byte_by_byte(tmp_path: Path) -> None:
    async def attack(hub: RunningHub, bus: tl.Bus) -> None:
        line = await Line.open(hub)
        for byte in framed(Attacker(1).hello()) + framed(said(control.Stats(id=2))):
            line.writer.write(bytes([byte]))
            await line.writer.drain()
        assert (await line.hear_answer(2))["type"] == "STATS_ANSWER"
        await line.close()

    against(tmp_path, attack)


def test_who_asks_and_does_not_listen_is_not_listened_to(tmp_path: Path) -> None:
    async def attack(hub: RunningHub, bus: tl.Bus) -> None:
        line = await Line.open(hub)
        line.send(Attacker(1).hello())
        await line.hear_answer(1)
        questions = framed(said(control.Stats(id=5))) * 1000
        sent = 0
        # Until the hub takes no more of it: neither of us has more room then than the kernel gives.
        with suppress(TimeoutError):
            while sent < 100_000_000:
                line.writer.write(questions)
                sent += len(questions)
                async with asyncio.timeout(1.0):
                    await line.writer.drain()
        assert sent < 100_000_000
        assert hub.alive
        line.writer.transport.abort()

    against(tmp_path, attack)


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_who_wants_everything_and_reads_nothing(tmp_path: Path, overflow: str) -> None:
    """Whatever capacity it requests, no more than the limit waits for it, and no publisher is delayed."""

    async def attack(hub: RunningHub, bus: tl.Bus) -> None:
        line = await Line.open(hub)
        line.send(Attacker(1).hello())
        await line.hear_answer(1)
        wanted = control.Subscribe(
            id=5, subscription=1, pattern="attack.>", name="all", credit=-1, capacity=2**40, overflow=overflow
        )
        line.send(said(wanted))
        await line.hear_answer(5)
        for number in range(100):
            await bus.publish_many("attack.flood", [bytes(100_000)] * 40)
            await bus.publish(f"attack.{number}", b"little")
        await bus.flush()
        stats = await stats_of(bus)
        assert stats["waiting_bytes"] <= 8_000_000
        assert stats["counts"]["dropped"] > 1000
        line.writer.transport.abort()

    against(tmp_path, attack, limits={"pending_bytes": 8_000_000})


def test_more_messages_than_bytes(tmp_path: Path) -> None:
    """A head may claim any count: nothing is created, numbered or remembered for messages that cannot exist."""

    async def attack(hub: RunningHub, bus: tl.Bus) -> None:
        before = (await stats_of(bus))["numbers"]
        line = await Line.open(hub)
        line.send(Attacker(1).hello())
        for number, count in enumerate((2**62, 10**9, 1000, 6), 1):
            line.send(frames.publish(PublishHead(number, "attack.a", count), bytes(40)))
            assert (await line.hear())["type"] in ("WELCOME", "ERROR")
        line.send(frames.publish(PublishHead(9, "attack.a", 5), bytes(40)), said(control.Heartbeat(id=9)))
        await line.hear_answer(9)
        assert (await stats_of(bus))["numbers"] == before + 5
        await line.close()

    against(tmp_path, attack)


def test_a_body_that_is_none_harms_no_subscriber(tmp_path: Path) -> None:
    """The hub does not open it. Its receivers count it, and continue."""

    async def attack(hub: RunningHub, bus: tl.Bus) -> None:
        attacker = Attacker(1)
        line = await Line.open(hub)
        line.send(attacker.hello())
        await line.hear_answer(1)
        async with bus.subscribe("attack.a") as plain, bus.subscribe("attack.a", group="g") as shared:
            for number in range(1, 300):
                line.send(frames.publish(PublishHead(number, "attack.a", 2), attacker._flip_bits(attacker.batch(2))))
            line.send(frames.publish(PublishHead(1000, "attack.a", 2), bytes(100)), said(control.Heartbeat(id=9)))
            await line.hear_answer(9)
            await bus.publish("attack.a", "the end")
            for messages in (plain, shared):
                async for message in messages:
                    if message.sender == bus.name:
                        assert message.decode() == "the end"
                        break
        assert isinstance(bus.broker, tl.HubBroker)
        assert bus.broker.metrics().malformed > 0
        assert bus.broker.metrics().connects == 1
        await line.close()

    against(tmp_path, attack)
