"""How long does a blocking request from a thread take, one at a time?

Ours: `connect_blocking().request`. The calling thread passes the request to the bus's event loop in another thread, the
handler answers there, and the caller is woken. That is two thread switches, with id, timeout, routing and accounting.
pykka: `ask` puts an envelope with a future into the actor's queue. The actor's thread answers through the future.
queue.Queue: a payload goes to another thread through one queue and back through a second one: only two thread switches.
Both peers are measured twice: with threads scheduled freely, and pinned to one core, where a switch is cheapest.
"""

from __future__ import annotations

import queue
import threading
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, on_one_core, one_core
from benchmarks.request import ASK, ask, p50
from trunkline import connect_blocking

PING_PONG = "two queue.Queues"


def ours(count: int) -> Sample:
    times: list[int] = []
    with connect_blocking() as bus:

        @bus.on("echo")
        async def answer(payload: bytes) -> bytes:
            return payload

        for _ in range(count):
            began = time.perf_counter_ns()
            bus.request("echo", PAYLOAD, reply=bytes)
            times.append(time.perf_counter_ns() - began)
    return p50(times)


def ping_pong(count: int) -> Sample:
    there: queue.Queue[bytes | None] = queue.Queue()
    back: queue.Queue[bytes] = queue.Queue()

    def answer() -> None:
        while (payload := there.get()) is not None:
            back.put(payload)

    thread = threading.Thread(target=answer)
    thread.start()
    times: list[int] = []
    for _ in range(count):
        began = time.perf_counter_ns()
        there.put(PAYLOAD)
        back.get()
        times.append(time.perf_counter_ns() - began)
    there.put(None)
    thread.join()
    return p50(times)


CASE = Case(
    name="blocking-request",
    question="a request from a thread, and its response, one at a time, p50",
    unit="µs",
    better="less",
    ours=ours,
    peers={ASK: ask, **on_one_core(ASK, ask), PING_PONG: ping_pong, **on_one_core(PING_PONG, ping_pong)},
    target={one_core(ASK): 0.15, one_core(PING_PONG): 0.11},
    aim={ASK: 0.7},
)
