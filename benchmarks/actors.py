"""How many messages per second can be sent to one actor, in process, through the broker?

Ours: `await actor.tell`, one message at a time, into a bounded mailbox. The mailbox is an inbox of the bus with its
accounting. The actor handles messages in its own task.
pykka: `tell` puts an envelope into an unbounded queue, and the actor's thread calls `on_receive`. It is measured twice:
with its two threads scheduled freely, and pinned to one core, which is faster. The promise is against the latter.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, on_one_core, one_core, rate, tell_rate
from trunkline import connect
from trunkline.actors import Actor, ActorSystem

TELL = "pykka tell"


class Counter(Actor):
    """Signals when it has received `count` messages."""

    def __init__(self, count: int, received: asyncio.Event) -> None:
        self._left = count
        self._received = received

    async def receive(self, payload: bytes) -> None:
        self._left -= 1
        if not self._left:
            self._received.set()


async def ours(count: int) -> Sample:
    async with connect() as bus, ActorSystem(bus) as system:
        received = asyncio.Event()
        # The sender waits if the mailbox is full. The mailboxes of pykka are unbounded.
        actor = await system.spawn(Counter, count, received, name="counter", overflow="block")
        began = time.perf_counter()
        for _ in range(count):
            await actor.tell(PAYLOAD)
        await received.wait()
        return rate(count, began)


CASE = Case(
    name="actors",
    question="tell one actor, in process, through the broker",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={TELL: tell_rate, **on_one_core(TELL, tell_rate)},
    target={one_core(TELL): 2.0},
    aim={TELL: 3.0},
)
