"""How many messages per second do two threads publish into a bus that runs in an event loop?

Ours: `bus.from_thread().publish` in two threads, without waiting for each message. One subscriber takes every message
with `async for`. Each message gets a future, an id, a time and a number, and is added to history and accounts.
queue.Queue: two threads put payloads into one bounded queue with our capacity, and a third thread takes them out.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.harness import Case, Sample
from benchmarks.peers import CAPACITY, PAYLOAD, TOPIC, on_one_core, one_core, rate
from trunkline import connect

THREADS = 2
QUEUE = "queue.Queue"


@contextmanager
def in_threads(count: int, put: Callable[[], object]) -> Iterator[None]:
    """Call `put` `count` times, divided among the threads."""

    def work(times: int) -> None:
        for _ in range(times):
            put()

    shares = [count // THREADS + (number < count % THREADS) for number in range(THREADS)]
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


async def ours(count: int) -> Sample:
    async with connect() as bus, bus.subscribe(TOPIC) as stream:
        door = bus.from_thread()
        left = count
        began = time.perf_counter()
        with in_threads(count, lambda: door.publish(TOPIC, PAYLOAD)):
            async for _ in stream:
                left -= 1
                if not left:
                    break
        return rate(count, began)


def queue_rate(count: int) -> Sample:
    waiting: queue.Queue[bytes] = queue.Queue(CAPACITY)
    began = time.perf_counter()
    with in_threads(count, lambda: waiting.put(PAYLOAD)):
        for _ in range(count):
            waiting.get()
    return rate(count, began)


CASE = Case(
    name="thread-publish",
    question="two threads publish into a bus in an event loop, one subscriber takes every message",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={QUEUE: queue_rate, **on_one_core(QUEUE, queue_rate)},
    target={one_core(QUEUE): 0.11},
    aim={QUEUE: 0.5},
)
