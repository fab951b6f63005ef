"""How many events per second reach one async handler, compared with bubus?

Ours: `await bus.publish`, one message at a time, and a handler with `bus.on`. The bus keeps ids, counters, history and
fates, and the inbox is bounded.
bubus: the default EventBus, whose queue holds 50 events. 40 events are dispatched and then awaited, which is faster
than one at a time. Each event is a pydantic model with the result of every handler. The history has the last 50 events.
"""

from __future__ import annotations

import asyncio
import time

from bubus import BaseEvent, EventBus

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, TOPIC, rate
from trunkline import connect

TOGETHER = 40
BUBUS = "bubus dispatch"


class Placed(BaseEvent[None]):  # type: ignore[misc]  # bubus has no type hints
    payload: bytes


async def ours(count: int) -> Sample:
    done = asyncio.Event()
    left = count
    async with connect() as bus:

        @bus.on(TOPIC)
        async def take(payload: bytes) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        began = time.perf_counter()
        for _ in range(count):
            await bus.publish(TOPIC, PAYLOAD)
        await done.wait()
        return rate(count, began)


async def dispatch(count: int) -> Sample:
    bus = EventBus()
    taken = 0

    async def take(event: Placed) -> None:
        nonlocal taken
        taken += 1

    bus.on(Placed, take)
    began = time.perf_counter()
    for first in range(0, count, TOGETHER):
        for event in [bus.dispatch(Placed(payload=PAYLOAD)) for _ in range(min(TOGETHER, count - first))]:
            await event
    assert taken == count
    sample = rate(count, began)
    await bus.stop(timeout=0)
    return sample


CASE = Case(
    name="bubus",
    question="publish to one async handler, in process",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={BUBUS: dispatch},
    size=100,
)
