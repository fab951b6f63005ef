"""No input can stop the hub: it counts attacks, and other clients are not affected."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.attacks import Attacker, said
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.lines import MAX_GROWTH_BYTES, RULES, Line, healthy, listen
from trunkline.wire import control

AT_ONCE = 20
ROUND = 16


async def attack(hub: RunningHub, seed: int, enough: asyncio.Event, taken: Counter[str], wanted: int) -> None:
    """One connection after another. An attack counts when the hub has answered or closed the connection."""
    attacker = Attacker(seed)
    while taken["frames"] < wanted:
        line = await Line.open(hub)
        try:
            if attacker.chance.random() < 0.9:
                line.send(attacker.hello())
            for number in range(1, attacker.chance.choice((2, 10, 40))):
                line.send(*attacker.frames(ROUND), said(control.Heartbeat(id=-number)))
                await line.hear_answer(-number)
                taken["frames"] += ROUND
                attacker.seqs.extend(line.seqs)
                line.seqs.clear()
            line.writer.write(attacker.last_words())
            taken["frames"] += 1
            if attacker.chance.random() < 0.5:
                line.writer.transport.abort()
        except (EOFError, ConnectionError):
            taken["frames"] += 1
            taken["hung up"] += 1
        finally:
            await line.close()
    enough.set()


async def converse(hub: RunningHub, enough: asyncio.Event) -> int:
    """Two honest clients: everything arrives, in order. Returns the number of messages."""
    async with (
        tl.connect(hub.address, name="giver", connection=tl.ConnectionSettings(connect_s=30.0)) as giver,
        tl.connect(hub.address, name="taker", connection=tl.ConnectionSettings(connect_s=30.1)) as taker,
        taker.subscribe("good.numbers") as numbers,
    ):
        count = 0

        async def give() -> None:
            nonlocal count
            while not enough.is_set():
                await giver.publish_many("good.numbers", range(count, count + 20))
                count += 20
                await giver.flush()
            await giver.publish("good.numbers", "end")

        task = asyncio.create_task(give())
        expected = 0
        while True:
            message = await numbers.recv()
            assert message is not None
            value = message.decode()
            if value == "end":
                break
            assert value == expected
            expected += 1
        await task
        assert expected == count
        await healthy(hub, giver)
        return count


def endure(tmp_path: Path, frames: int, seed: int, journal: Path | None = None) -> None:
    async def run(hub: RunningHub) -> None:
        enough = asyncio.Event()
        taken: Counter[str] = Counter()
        async with asyncio.TaskGroup() as tasks:
            good = tasks.create_task(converse(hub, enough))
            for number in range(AT_ONCE):
                tasks.create_task(attack(hub, seed + number, enough, taken, frames))
        assert good.result() > 0
        assert taken["frames"] >= frames
        async with tl.connect(hub.address, name="watcher") as bus:
            stats = await healthy(hub, bus, others=0)
        assert stats["counts"]["malformed"] > frames / 20
        assert stats["counts"]["refused"] > frames / 100
        assert hub.rss_bytes() - before < MAX_GROWTH_BYTES

    with running_hub(tmp_path, listen=listen(tmp_path), rules=RULES, journal=journal) as hub:
        before = hub.rss_bytes()
        asyncio.run(run(hub))
        hub.end()


def test_random_and_mutated_frames(tmp_path: Path) -> None:
    endure(tmp_path, 20_000, seed=1)


def test_random_and_mutated_frames_with_a_journal(tmp_path: Path) -> None:
    endure(tmp_path, 2_000, seed=2, journal=tmp_path / "journal")


@pytest.mark.long
def test_a_million_random_and_mutated_frames(tmp_path: Path) -> None:
    endure(tmp_path, 1_000_000, seed=1000)
