"""Our side of the cases with a hub: `trunkline up` in its own process, and the functions of the workers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.durable import TOPIC, payloads
from benchmarks.processes import Line
from benchmarks.servers import Place, Server, pid_of, process
from benchmarks.stamps import EVERY_S, PACED, Pace, age_ns, stamped
from trunkline import Bus, Overflow, connect
from trunkline.errors import Refused

UNIX = "unix"
ZMQ_IPC = "zmq+ipc"
_LISTEN = {
    UNIX: "unix://{folder}/hub.sock",
    "tcp": "tcp://127.0.0.1:0",
    ZMQ_IPC: "zmq+ipc://{folder}/hub.ipc",
    "zmq+tcp": "zmq+tcp://127.0.0.1:0",
}
TRANSPORTS = tuple(_LISTEN)
MANY = 256
FLOOD = "bench.flood"
LONE = "bench.lone"
HIGHEST = 100
UP = "import sys; from trunkline.cli import main; sys.exit(main())"


def named(case: str, transport: str) -> str:
    """The name of a case, with the transport unless it is the default one."""
    return case if transport == UNIX else f"{case}@{transport}"


def hub_on(transport: str, *, heartbeat_s: float = 5.0) -> Server[Place]:
    return Server(partial(_start, transport, heartbeat_s))


@contextmanager
def _start(transport: str, heartbeat_s: float, folder: Path) -> Iterator[Place]:
    settings = folder / "hub.toml"
    settings.write_text(f"[hub]\nheartbeat_s = {heartbeat_s}\n")
    listen = _LISTEN[transport].format(folder=folder)
    command = [sys.executable, "-c", UP, "up", "--json", "--listen", listen, "--config", str(settings)]
    with process(command, folder / "hub.log", r'"listening":\["([^"]+)"\]') as ready:
        yield Place(ready[1], pid_of(ready))


class MeteredPlace(Place):
    """A hub that serves metrics, with the address of the metrics."""

    metrics: str


def hub_with_metrics() -> Server[MeteredPlace]:
    return Server(_start_with_metrics)


@contextmanager
def _start_with_metrics(folder: Path) -> Iterator[MeteredPlace]:
    command = [sys.executable, "-c", UP, "up", "--json", "--listen", _LISTEN[UNIX].format(folder=folder)]
    ready = r'"listening":\["([^"]+)"\].*"metrics":"([^"]+)"'
    with process([*command, "--metrics", "0"], folder / "hub.log", ready) as found:
        place = MeteredPlace(found[1], pid_of(found))
        place.metrics = found[2]
        yield place


async def arrive(bus: Bus) -> None:
    """Return when the connection is open and the hub has processed all that this bus has sent so far."""
    await bus.publish("bench.ready")
    await bus.flush()


# A stream of messages


async def publish(line: Line, address: str, count: int) -> int:
    """Publish one by one. Returns the time of the first publish."""
    messages = payloads(count)
    async with connect(address) as bus:
        await arrive(bus)
        line.ready()
        began_ns = time.perf_counter_ns()
        for payload in messages:
            await bus.publish(TOPIC, payload)
        await bus.flush()
    return began_ns


async def publish_many(line: Line, address: str, count: int) -> int:
    """Publish 256 at a time. Returns the time of the first publish."""
    messages = payloads(count)
    async with connect(address) as bus:
        await arrive(bus)
        line.ready()
        began_ns = time.perf_counter_ns()
        for first in range(0, count, MANY):
            await bus.publish_many(TOPIC, messages[first : first + MANY])
        await bus.flush()
    return began_ns


async def subscribe(line: Line, address: str, count: int) -> int:
    """Receive in batches. Returns the time at which the last message was received."""
    async with connect(address) as bus, bus.subscribe(TOPIC) as stream:
        line.ready()
        async for batch in stream.batches():
            count -= len(batch)
            if count <= 0:
                break
        return time.perf_counter_ns()


async def subscribe_payloads(line: Line, address: str, count: int) -> int:
    """Receive in batches, payloads only. Returns the time at which the last message was received."""
    async with connect(address) as bus, bus.subscribe(TOPIC) as stream:
        line.ready()
        async for payloads in stream.payloads():
            count -= len(payloads)
            if count <= 0:
                break
        return time.perf_counter_ns()


async def subscribe_each(line: Line, address: str, count: int) -> int:
    """Receive one by one. Returns the time at which the last message was received."""
    async with connect(address) as bus, bus.subscribe(TOPIC) as stream:
        line.ready()
        async for _ in stream:
            count -= 1
            if not count:
                break
        return time.perf_counter_ns()


# Requests


async def request(line: Line, address: str, count: int) -> list[int]:
    """Send requests one after another. Returns how long each took."""
    times_ns: list[int] = []
    async with connect(address) as bus:
        await arrive(bus)
        line.ready()
        for payload in payloads(count):
            began_ns = time.perf_counter_ns()
            await bus.request(TOPIC, payload, reply=bytes)
            times_ns.append(time.perf_counter_ns() - began_ns)
    return times_ns


async def respond(line: Line, address: str) -> None:
    async with connect(address) as bus:

        @bus.on(TOPIC)
        async def answer(payload: bytes) -> bytes:
            return payload

        await arrive(bus)
        line.ready()
        await asyncio.to_thread(line.stop.wait)


# A flood, and lone messages at the same time


async def flood(line: Line, address: str, per_s: float | None = None) -> int:
    """Publish at `per_s`, or as fast as possible, until stopped. Returns the number of messages."""
    messages = payloads(1000 if per_s is None else PACED)
    published = 0
    async with connect(address) as bus:
        await arrive(bus)
        line.ready()
        pace = Pace(per_s)
        while not line.stop.is_set():
            for payload in messages:
                try:
                    await bus.publish(FLOOD, payload)
                except Refused:
                    # The publish timed out, because a subscriber takes nothing.
                    continue
            published += len(messages)
            # Yields to the event loop, as other parts of a program need it, too.
            await pace.after(len(messages))
    return published


async def swallow(line: Line, address: str) -> None:
    """Receive the flood until stopped."""
    async with connect(address) as bus, bus.subscribe(FLOOD) as stream:

        async def take() -> None:
            async for _ in stream.batches():
                continue

        taking = asyncio.create_task(take())
        line.ready()
        await asyncio.to_thread(line.stop.wait)
        taking.cancel()


async def hold(line: Line, address: str, overflow: Overflow) -> None:
    """Subscribe to the flood, but never take a message."""
    async with connect(address) as bus, bus.subscribe(FLOOD, overflow=overflow):
        line.ready()
        await asyncio.to_thread(line.stop.wait)


async def publish_lone(line: Line, address: str, count: int) -> None:
    """Publish a message with a timestamp and the highest priority every few milliseconds."""
    async with connect(address) as bus:
        await arrive(bus)
        line.ready()
        for _ in range(count):
            await asyncio.sleep(EVERY_S)
            await bus.publish(LONE, stamped(), priority=HIGHEST)
        await bus.flush()


async def receive_lone(line: Line, address: str, count: int) -> list[int]:
    """Returns the age of each message when it was received."""
    ages_ns: list[int] = []
    async with connect(address) as bus, bus.subscribe(LONE) as stream:
        line.ready()
        async for message in stream:
            ages_ns.append(age_ns(message.payload))
            if len(ages_ns) == count:
                break
    return ages_ns
