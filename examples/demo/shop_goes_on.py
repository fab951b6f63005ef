"""`make demo KEEP=1`: after the story the shop keeps running, with a page that shows it, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import NoReturn

import trunkline as tl
from examples.demo.agents import Order
from examples.demo.narrator import Narrator
from examples.demo.processes import Processes
from examples.demo.story import ALL, WAIT_S, receive

AGENTS = ["desk", "prices", "billing-1", "billing-2", "dashboard"]
ORDER_EVERY_S = 0.5
BAD_EVERY, LOOK_EVERY = 10, 25


async def go_on(narrator: Narrator, place: Path) -> NoReturn:
    """On the journal of the story. All processes end when this is cancelled."""
    logs = place / "logs" / "kept"
    logs.mkdir(exist_ok=True, parents=True)
    async with Processes(logs) as processes:
        async with narrator.waiting("the hub and its page"):
            journal = (place / "journal").absolute()
            await processes.start("hub", "trunkline", "up", "--journal", journal, "--page", "--json")
            started = json.loads(await processes.read("hub"))
        address = str(started["listening"][0])
        async with tl.connect(address, name="customers") as bus:
            async with bus.subscribe("agents.ready", name="door") as door, narrator.waiting("the agents"):
                for name in AGENTS:
                    await processes.start(name, "examples.demo.agents", name, address)
                for _ in AGENTS:
                    await receive(door)
            describe(narrator, started["page"], address)
            await trade(bus)


def describe(narrator: Narrator, page: str, address: str) -> None:
    trunkline = os.path.relpath(Path(sys.executable).with_name("trunkline"))
    narrator.line()
    narrator.say(
        f"""The shop goes on: an order every {ORDER_EVERY_S:g} s. Each {BAD_EVERY}th cannot be billed and becomes a dead
        letter, which you can replay on the page. Ctrl-C ends it."""
    )
    narrator.line(f"  {page}  (open it in a browser)")
    narrator.line(f"  {trunkline} top --hub {address}")


async def trade(bus: tl.Bus) -> NoReturn:
    for number in count(ALL[-1] + 1):
        if number % BAD_EVERY:
            await bus.request("desk.place", [number], timeout_s=WAIT_S)
        else:
            await bus.publish("orders.placed", Order(number, "pot", 24.0, currency="XYZ"))
        if number % LOOK_EVERY == 0:
            await bus.request("dashboard.look", number, timeout_s=WAIT_S)
        await asyncio.sleep(ORDER_EVERY_S)
    raise AssertionError("numbers do not end")
