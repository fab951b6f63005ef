"""Random traffic between real processes, some of them stopped or killed: fates are compared with what really happened.

The subscribers write down what they take (taker.py); that is the truth. Every message that was accepted has exactly one
fate for everybody who subscribed, the same whoever asks, and the books of the hub add up.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trunkline as tl
from tests.hub.hub_process import ROOT, RunningHub, running_hub
from tests.hub.lines import stats_of
from tests.hub.taker import plan
from tests.stopped import stop
from trunkline.delivery.books import LOST

DEADLINE_S = 60.0
ARRAY = 10_000
"""Numbers in an array. Some go through shared memory, the rest inline: those that are slow hold all there is."""
SHARING = tl.ConnectionSettings(shared_memory_min_bytes=64 * 1024)


class Taker:
    def __init__(self, hub: RunningHub, folder: Path, name: str, kind: str, where: str) -> None:
        self.name = name
        self.kind = kind
        self._file = folder / f"{name}.notes"
        command = plan(address=hub.address, file=str(self._file), name=name, kind=kind, where=where)
        self.process = subprocess.Popen(command, cwd=ROOT)
        self.before: set[str] = set()
        """What it had taken, and reported, before it was killed."""

    def notes(self) -> list[tuple[str, str]]:
        text = self._file.read_text() if self._file.exists() else ""
        return [(what, message_id) for what, _, message_id in (line.partition(" ") for line in text.splitlines())]

    def open(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while ("open", "") not in self.notes():
            assert self.process.poll() is None, f"{self.name} ended"
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def took(self, what: str = "took") -> set[str]:
        return {message_id for noted, message_id in self.notes() if noted == what}

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(DEADLINE_S)


@contextmanager
def takers(hub: RunningHub, folder: Path, kinds: dict[str, str], where: str) -> Iterator[dict[str, Taker]]:
    found = {name: Taker(hub, folder, name, kind, where) for name, kind in kinds.items()}
    try:
        for taker in found.values():
            taker.open()
        yield found
    finally:
        for taker in found.values():
            taker.end()


KINDS = {
    "plain": "plain",
    "batches": "batches",
    "slow": "slow",
    "drops": "drops",
    "filtered": "filtered",
    "acknowledged": "acknowledged",
    "failing": "failing",
    "one": "group",
    "other": "group",
    "killed": "slow",
    "killed too": "batches",
    "stopped": "slow",
}


async def outcome_of(bus: tl.Bus, message_id: str) -> dict[str, tuple[str, str]]:
    explained = await bus.explain(message_id)
    found = {outcome.subscriber: (outcome.fate.value, outcome.reason) for outcome in explained.outcomes}
    assert len(found) == len(explained.outcomes), f"two fates of one subscriber: {explained}"
    return found


async def play(hub: RunningHub, there: dict[str, Taker], chance: random.Random, arrays: bool) -> None:
    own = tl.ConnectionSettings(connect_s=6.0)
    async with (
        tl.connect(hub.address, name="publisher", connection=SHARING) as bus,
        # Another connection: with the same settings they would share one.
        tl.connect(hub.address, name="stranger", connection=own) as stranger,
    ):
        ids: list[str] = []
        assert (await stats_of(stranger))["clients"] == len(KINDS) + 1

        async def publish(count: int, size: int = 0) -> None:
            for _ in range(count):
                number = len(ids)
                options: dict[str, Any] = {"priority": 75} if chance.random() < 0.1 else {}
                if arrays:
                    options["headers"] = {"odd": str(number % 2)}
                payload = np.full(size, number) if size else number
                ids.append(await bus.publish(f"t.{chance.choice('abc')}", payload, **options))
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.random() * 0.02)
            await bus.flush()

        await publish(100, ARRAY if arrays else 0)
        await asyncio.sleep(chance.random())
        for name in ("killed", "killed too"):
            there[name].before = there[name].took()
            for message_id in there[name].before:
                await reported(stranger, message_id, name)
            there[name].process.kill()
            there[name].process.wait()
        stop(there["stopped"].process.pid)
        while (await stats_of(bus))["clients"] > len(KINDS):  # noqa: ASYNC110  # the hub is another process
            await asyncio.sleep(0.02)
        gone = len(ids)
        # More than it has room for, while it takes nothing: something is dropped, however slow this machine is.
        stop(there["drops"].process.pid)
        # And so little that the one which is stopped need not take anything, or its publisher would wait for it.
        await publish(60)
        there["drops"].process.send_signal(signal.SIGCONT)
        await settle(there, ids)
        await reported(bus, ids[-1], "plain", "batches", "acknowledged")
        for name in ("one", "other"):
            if taken := [message_id for message_id in ids if message_id in there[name].took()]:
                await reported(bus, taken[-1], name)
        account = (await stats_of(bus))["account"]
        ends = ("delivered", "filtered", "expired", "dropped", "dead", "in_flight")
        assert account["accepted"] == sum(account[name] for name in ends)
        counted: Counter[str] = Counter()
        for number, message_id in enumerate(ids):
            if number == len(ids) - 4:
                # While it was stopped it could not be asked: each answer took a moment.
                there["stopped"].process.send_signal(signal.SIGCONT)
            if number % 40 == 0 or number >= len(ids) - 4:
                found = await outcome_of(bus, message_id)
                compare(there, found, message_id, number, number >= gone)
                counted.update(fate for fate, _ in found.values())
        for number, message_id in enumerate(ids):
            found = await outcome_of(stranger, message_id)
            compare(there, found, message_id, number, number >= gone)
            counted.update(fate for fate, _ in found.values())
            assert set(await outcome_of(bus, message_id)) == set(found)
        assert {"delivered", "filtered", "dropped", "dead", "in flight"} <= set(counted), counted
        assert isinstance(bus.broker, tl.HubBroker)
        assert (bus.broker.metrics().shared > 0) is arrays


async def settle(there: dict[str, Taker], ids: list[str]) -> None:
    """Return when the subscribers that take everything have finished."""
    deadline = time.monotonic() + DEADLINE_S
    fast = [there[name] for name in ("plain", "batches", "acknowledged")]
    while any(len(taker.took()) < len(ids) for taker in fast) or len(team(there)) < len(ids):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def reported(bus: tl.Bus, message_id: str, *names: str) -> None:
    """Return when the hub knows that they took this message. Each reports in the order of taking."""

    async def said() -> set[str]:
        found = await outcome_of(bus, message_id)
        return {found[name][0] for name in names}

    async with asyncio.timeout(DEADLINE_S):
        while await said() != {"delivered"}:  # noqa: ASYNC110  # the hub is another process
            await asyncio.sleep(0.02)


def team(there: dict[str, Taker]) -> set[str]:
    return there["one"].took() | there["other"].took()


def compare(
    there: dict[str, Taker], found: dict[str, tuple[str, str]], message_id: str, number: int, late: bool
) -> None:
    """One message: each subscriber has the fate that its own notes show."""
    said = {name: fate for name, (fate, _) in found.items()}
    for name in ("plain", "batches", "acknowledged"):
        assert said[name] == "delivered", (name, found)
    assert said["filtered"] == ("delivered" if number % 2 == 0 else "filtered"), found
    assert said["failing"] == ("dead" if number % 7 == 0 else "delivered"), found
    (member,) = {"one", "other"} & set(said)
    assert said[member] == "delivered"
    assert message_id in there[member].took()
    for name in ("slow", "drops", "stopped"):
        if message_id in there[name].took():
            # The one it has in its hands may be taken and not counted.
            assert said[name] in ("delivered", "in flight"), (name, found)
        else:
            assert said[name] in (("dropped", "in flight") if name == "drops" else ("in flight",)), (name, found)
    for name in ("killed", "killed too"):
        if late:
            assert name not in said, found
        elif message_id in there[name].before:
            assert said[name] == "delivered", (name, found)
        elif message_id not in there[name].took():
            assert found[name] == ("dropped", LOST), (name, found)
        else:
            assert said[name] in ("delivered", "dropped"), (name, found)


@pytest.mark.parametrize("arrays", [False, True], ids=["numbers", "arrays"])
@pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_fates_are_what_happened(tmp_path: Path, journal: bool, seed: int, arrays: bool) -> None:
    where = "headers.odd == '0'" if arrays else "payload % 2 == 0"
    with ExitStack() as stack:
        hub = stack.enter_context(running_hub(tmp_path, journal=tmp_path / "journal" if journal else None))
        there = stack.enter_context(takers(hub, tmp_path, KINDS, where))
        asyncio.run(play(hub, there, random.Random(seed), arrays))
