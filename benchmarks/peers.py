"""Shared by several cases: the workload, a bare asyncio.Queue that carries it, and a pykka actor."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pykka

from benchmarks.harness import Sample
from trunkline import Backpressure, Message
from trunkline.codec import RAW

TOPIC = "orders.eu.placed"
PAYLOAD = bytes(100)
CAPACITY = Backpressure().max_pending
QUEUE = "asyncio.Queue"
_ID = "0198c0de-0000-7000-8000-000000000000"


def message() -> Message:
    """The same struct as a message of the bus, but with constant id, time and number."""
    return Message(_ID, TOPIC, PAYLOAD, 1, 1, "bus", RAW)


def rate(count: int, began: float) -> Sample:
    """`count` per second since `began` (a value of `time.perf_counter`)."""
    took_s = time.perf_counter() - began
    return Sample(count / took_s, took_s)


async def queue_rate(count: int) -> Sample:
    """Messages per second through one bare queue with the capacity of our inbox."""
    queue: asyncio.Queue[Message] = asyncio.Queue(CAPACITY)

    async def read() -> None:
        for _ in range(count):
            await queue.get()

    began = time.perf_counter()
    reader = asyncio.create_task(read())
    for _ in range(count):
        await queue.put(message())
    await reader
    return rate(count, began)


async def queue_handler_rate(count: int, work: Callable[[bytes], Awaitable[None]]) -> Sample:
    """Messages per second when a task calls a function with each payload from a bare queue."""
    queue: asyncio.Queue[Message] = asyncio.Queue(CAPACITY)

    async def read() -> None:
        for _ in range(count):
            await work((await queue.get()).payload)

    began = time.perf_counter()
    reader = asyncio.create_task(read())
    for _ in range(count):
        await queue.put(message())
    await reader
    return rate(count, began)


class Echo(pykka.ThreadingActor):
    """Returns each message, and signals when it has received `count`."""

    def __init__(self, count: int, received: threading.Event) -> None:
        super().__init__()
        self._left = count
        self._received = received

    def on_receive(self, message: Any) -> Any:
        self._left -= 1
        if not self._left:
            self._received.set()
        return message


@contextmanager
def echo(count: int) -> Iterator[tuple[pykka.ActorRef[Echo], threading.Event]]:
    """A running actor, and an event that is set when it has received `count` messages."""
    received = threading.Event()
    actor = Echo.start(count, received)
    try:
        yield actor, received
    finally:
        actor.stop()


def tell_rate(count: int) -> Sample:
    """Messages per second sent to one actor, until it has received them all."""
    with echo(count) as (actor, received):
        began = time.perf_counter()
        for _ in range(count):
            actor.tell(PAYLOAD)
        received.wait()
        return rate(count, began)


def one_core(name: str) -> str:
    return f"{name}, one core"


def on_one_core(name: str, measure: Callable[[int], Sample]) -> dict[str, Callable[[int], Sample]]:
    """The same peer, pinned to one core; empty on systems without that feature.

    Two communicating threads are several times slower on two cores than on one, and the scheduler changes between the
    two from time to time: an `ask` takes 17 or 90 µs. On one core the result is stable, and the better of the two.
    Targets are therefore promised against this variant, which is harder to beat. The other has aims.
    """
    if sys.platform != "linux":
        return {}

    def pinned(count: int) -> Sample:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            return measure(count)
        finally:
            os.sched_setaffinity(0, cores)

    return {one_core(name): pinned}
