"""Journals with real traffic, made in virtual time: hours of it in a moment, the same for each seed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import trunkline as tl
from trunkline.journal import Journal, JournalSettings
from trunkline.testing import Simulation, simulate, world

START_NS = 1_763_333_400 * 1_000_000_000
"""2025-11-16, ten minutes before eleven in the evening: the traffic goes over midnight."""
HOUR_NS = 3_600_000_000_000


class Life:
    """One run of a program on a journal. It may be repeated later, on the same one."""

    def __init__(self, directory: Path, size: int, *, gap_s: float = 40.0, seal: bool = True) -> None:
        self.directory = directory
        self.size = size
        self.gap_s = gap_s
        self.seal = seal

    async def live(self, simulation: Simulation) -> None:
        chance = simulation.random
        settings = JournalSettings(seal_rows=50, tend_s=3600.0)
        journal = Journal(self.directory, settings, world=world(simulation), threaded=False)
        with journal:
            async with tl.connect("memory:", name="shop", journal=journal, world=world(simulation)) as bus:
                _attend(bus)
                for number in range(self.size):
                    await asyncio.sleep(chance.random() * self.gap_s)
                    await _do(bus, simulation, number)
                    if self.seal and chance.random() < 0.02:
                        await bus.quiet()
                        await bus.flush()
                        journal.seal(everything=True)
                await bus.quiet()
                await bus.flush()


def _attend(bus: tl.Bus) -> None:
    """The subscribers: one that answers, one that sometimes fails, a group, and one with a filter."""

    @bus.on("pricing")
    async def price(question: Any) -> dict[str, float]:
        kind = question.get("kind") if isinstance(question, dict) else None
        if kind == "slow":
            await asyncio.sleep(45)
        if kind == "never":
            await asyncio.sleep(100)
        if kind == "bad":
            raise LookupError(f"no price for {question['n']}")
        return {"price": 9.5}

    @bus.on("orders.*", durable=True, retry=tl.Retry(attempts=2))
    async def bill(order: Any) -> None:
        await asyncio.sleep(0.01)
        if isinstance(order, dict) and order.get("total") == 13:
            raise ValueError(f"bad order {order['n']}")

    @bus.on("orders.placed", group="packers")
    async def pack(order: Any) -> None:
        await asyncio.sleep(0.002)

    @bus.on("ticks", where="priority > 60")
    async def watch(tick: Any) -> None:
        return


async def _do(bus: tl.Bus, simulation: Simulation, number: int) -> None:
    chance = simulation.random
    kind = chance.random()
    if kind < 0.35:
        payload = {"n": number, "total": chance.choice((5, 13, 20)), "place": "Zürich"}
        await bus.publish(chance.choice(("orders.placed", "orders.paid")), payload)
    elif kind < 0.6:
        await bus.publish("ticks", number, priority=chance.choice((50, 75)))
    elif kind < 0.8:
        question = {"n": number, "kind": chance.choice(("easy", "easy", "easy", "bad", "slow", "never"))}
        await _ask(bus, question, chance.choice((5.0, 60.0)))
    elif kind < 0.9:
        # A publisher with a wrong clock, odd payloads, and repeated messages.
        skew_s = chance.choice((0, -300, 500, 7200, -90_000))
        await _say_twice(bus, simulation, number, skew_s)
    else:
        first = await bus.publish("flow.begin", number)
        second = await bus.publish("flow.middle", number, correlation_id=first)
        await asyncio.sleep(chance.random() * 10)
        await bus.publish("flow.end", number, correlation_id=chance.choice((first, second)))


async def _ask(bus: tl.Bus, question: dict[str, Any], timeout_s: float) -> None:
    try:
        await bus.request("pricing", question, timeout_s=timeout_s)
    except tl.RequestError:
        return


async def _say_twice(bus: tl.Bus, simulation: Simulation, number: int, skew_s: int) -> None:
    chance = simulation.random
    payload = chance.choice((b"", b"\xff\xfe", b"{not json", json.dumps({"a": [1, None]}).encode()))
    message = tl.Message(
        id=f"chat-{number}",
        topic="chat.grüße",
        payload=payload,
        content_type="application/json",
        timestamp_ns=simulation.time_ns() + skew_s * 1_000_000_000,
        sender="木",
    )
    await bus.post(message)
    if chance.random() < 0.5:
        await bus.post(message)


def live(directory: Path, seed: int, size: int, *, start_ns: int = START_NS, **options: Any) -> None:
    life = Life(directory, size, **options)
    simulate(life.live, seed=seed, start_ns=start_ns)


def execute_a_cell(directory: Path, cell: str, *, start_ns: int) -> None:
    """Requests to a kernel and its messages, as far as a table needs them."""
    asked = {"header": {"msg_id": cell, "session": "s", "username": "ada"}, "parent_header": {}}
    reply = {"header": {"msg_id": f"{cell}-reply"}, "parent_header": {"msg_id": cell}}
    frames = (
        ("execute_request", {**asked, "content": {"code": "1/0"}}),
        ("execute_reply", {**reply, "content": {"status": "error", "ename": "ZeroDivisionError"}}),
    )

    async def publish(simulation: Simulation) -> None:
        there = world(simulation)
        with Journal(directory, world=there, threaded=False) as journal:
            async with tl.connect("memory:", name="notebook", journal=journal, world=there) as bus:
                for kind, frame in frames:
                    message = tl.Message(
                        id=frame["header"]["msg_id"],
                        topic=f"kernel.k.shell.{kind}",
                        payload=json.dumps(frame).encode(),
                        content_type="application/json",
                        timestamp_ns=simulation.time_ns(),
                    )
                    await bus.post(message)

    simulate(publish, start_ns=start_ns)
