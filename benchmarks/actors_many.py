"""How long does it take to start an actor, if there are many idle ones? And how much memory does an actor need?"""

from __future__ import annotations

import gc
import time
import tracemalloc

import pykka

from benchmarks.harness import Case, Sample
from trunkline import connect
from trunkline.actors import Actor, ActorSystem

START = "pykka start"
ACTORS = 100_000
MAX_THREADS = 2000
"""The most threads at a time. More would exceed the limits of the machine."""


class Idle(Actor):
    async def receive(self, payload: bytes) -> None:
        return


class IdlePykka(pykka.ThreadingActor):
    pass


async def spawned(count: int) -> Sample:
    async with connect() as bus, ActorSystem(bus) as system:
        began = time.perf_counter()
        for _ in range(count):
            await system.spawn(Idle)
        took_s = time.perf_counter() - began
    return Sample(took_s / count * 1e6, took_s)


def started(count: int) -> Sample:
    took_s = 0.0
    left = count
    while left > 0:
        some = min(left, MAX_THREADS)
        began = time.perf_counter()
        for _ in range(some):
            IdlePykka.start()
        took_s += time.perf_counter() - began
        left -= some
        pykka.ActorRegistry.stop_all()
    return Sample(took_s / count * 1e6, took_s)


async def held(count: int) -> Sample:
    """Bytes per actor: the memory that Python has allocated for all of them, divided by their number."""
    async with connect() as bus, ActorSystem(bus) as system:
        await system.spawn(Idle)
        gc.collect()
        tracemalloc.start()
        began = time.perf_counter()
        for _ in range(count):
            await system.spawn(Idle)
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return Sample(size / count, time.perf_counter() - began)


CASE = Case(
    name="actors-many",
    question="start an actor, of 100,000 that do nothing",
    unit="µs",
    better="less",
    ours=spawned,
    peers={START: started},
    target={START: 5.0},
    size=ACTORS,
    fixed=True,
    rounds=3,
    round_s=40.0,
)
MEMORY = Case(
    name="actors-memory",
    question="memory of an actor, of 100,000 that do nothing",
    unit="bytes",
    better="less",
    ours=held,
    limit=5000.0,
    size=ACTORS,
    fixed=True,
    rounds=1,
    round_s=20.0,
)
