"""A subscriber in a process of its own: `python -m tests.hub.taker PLAN`. It writes down what it took, at once.

A line of its file is `took ID`, `failed ID` or `open`; what it has written is true also if it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import msgspec
import numpy as np

import trunkline as tl

OPTIONS: dict[str, dict[str, Any]] = {
    "group": {"group": "team"},
    "durable": {"durable": True},
    "drops": {"capacity": 8, "overflow": "drop_oldest"},
    "acknowledged": {"ack": True},
}


class Plan(msgspec.Struct):
    address: str
    file: str
    name: str
    kind: str
    """plain, batches, slow, drops, filtered, acknowledged, failing, group or durable."""
    pattern: str = "t.*"
    where: str = "payload % 2 == 0"
    """The filter of the one that is filtered."""


async def run(plan: Plan) -> None:
    notes = os.open(plan.file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(what: str, message_id: str = "") -> None:
        os.write(notes, f"{what} {message_id}\n".encode())

    options = {"where": plan.where} if plan.kind == "filtered" else OPTIONS.get(plan.kind, {})
    async with tl.connect(plan.address, name=f"client of {plan.name}") as bus:
        if plan.kind in ("failing", "group", "durable"):

            async def handle(message: tl.Message) -> None:
                if plan.kind == "failing" and int(np.ravel(message.decode())[0]) % 7 == 0:
                    note("failed", message.id)
                    raise tl.Reject("sevens")
                note("took", message.id)
                await asyncio.sleep(0.002)

            handler = bus.handle(plan.pattern, handle, name=plan.name, **options)
            await handler._stream.opened()
            note("open")
            await asyncio.Event().wait()
        async with bus.subscribe(plan.pattern, name=plan.name, **options) as messages:
            note("open")
            if plan.kind == "batches":
                async for batch in messages.batches(16):
                    for message in batch:
                        note("took", message.id)
                    await asyncio.sleep(0.01)
            async for message in messages:
                note("took", message.id)
                if plan.kind == "acknowledged":
                    messages.ack(message)
                if plan.kind in ("slow", "drops"):
                    await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))


def plan(**fields: Any) -> list[str]:
    """The command that starts one."""
    return [sys.executable, "-m", "tests.hub.taker", json.dumps(fields)]
