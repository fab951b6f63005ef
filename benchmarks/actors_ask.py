"""How long does a request to an actor take, one at a time?

Ours: `await actor.ask`, a request through the bus to the mailbox of an actor on the same event loop, and its answer.
pykka: `ask` puts an envelope with a future into the queue of an actor, whose thread answers through the future. It is
measured twice: with its two threads scheduled freely, and pinned to one core, which is faster. The promise is against
the latter.
"""

from __future__ import annotations

import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, on_one_core, one_core
from benchmarks.request import ASK, ask, p50
from trunkline import connect
from trunkline.actors import Actor, ActorSystem


class Echo(Actor):
    async def receive(self, payload: bytes) -> bytes:
        return payload


async def ours(count: int) -> Sample:
    times: list[int] = []
    async with connect() as bus, ActorSystem(bus) as system:
        actor = await system.spawn(Echo, name="echo")
        for _ in range(count):
            began = time.perf_counter_ns()
            await actor.ask(PAYLOAD, reply=bytes)
            times.append(time.perf_counter_ns() - began)
    return p50(times)


CASE = Case(
    name="actors-ask",
    question="ask an actor, one at a time, p50",
    unit="µs",
    better="less",
    ours=ours,
    peers={ASK: ask, **on_one_core(ASK, ask)},
    target={one_core(ASK): 1.2},
    aim={ASK: 2.0},
)
