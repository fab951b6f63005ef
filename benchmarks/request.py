"""How long is a round trip of request and response in process, one at a time?

Ours: `await bus.request` to an async handler on the same event loop, with id, timeout, routing and accounting of two
messages.
pykka: `ask` puts an envelope with a future into the queue of an actor, whose thread answers through the future: two
thread switches. It is measured twice: with its two threads scheduled freely, and pinned to one core, which is faster.
The promise is against the latter.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, echo, on_one_core, one_core
from trunkline import connect

ASK = "pykka ask"


async def ours(count: int) -> Sample:
    async with connect() as bus:

        @bus.on("echo")
        async def answer(payload: bytes) -> bytes:
            return payload

        times: list[int] = []
        for _ in range(count):
            began = time.perf_counter_ns()
            await bus.request("echo", PAYLOAD, reply=bytes)
            times.append(time.perf_counter_ns() - began)
    return p50(times)


def ask(count: int) -> Sample:
    times: list[int] = []
    with echo(count) as (actor, _received):
        for _ in range(count):
            began = time.perf_counter_ns()
            actor.ask(PAYLOAD)
            times.append(time.perf_counter_ns() - began)
    return p50(times)


def p50(times_ns: list[int]) -> Sample:
    return Sample(statistics.median(times_ns) / 1e3, sum(times_ns) / 1e9)


CASE = Case(
    name="request",
    question="a request and its response, one at a time, p50",
    unit="µs",
    better="less",
    ours=ours,
    peers={ASK: ask, **on_one_core(ASK, ask)},
    target={one_core(ASK): 1.5},
    aim={ASK: 2.0},
)
