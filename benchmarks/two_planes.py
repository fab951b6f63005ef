"""How many arrays of 8 MiB go from one process to another, through a hub in a third, on one host?

The same program on the same bus, with shared memory and without it; and nats-py, which gets the bytes of the array and
makes an array of what it receives. The subscriber reads a number of every page. The first arrays are not measured:
memory that is written for the first time takes ten times as long, and a program that runs for a while does so once.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import nats
import numpy as np
import numpy.typing as npt
from nats.aio.msg import Msg

from benchmarks import nats_core
from benchmarks.durable import TOPIC
from benchmarks.harness import OURS, Case
from benchmarks.hubs import UNIX, hub_on
from benchmarks.processes import Line, crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate
from trunkline import ConnectionSettings, connect

OFF = "ours, without shared memory"
NATS = "nats-py"
ARRAY_BYTES = 8 * 1024 * 1024
PAGE = 4096
WARM = 16
FLUSH_S = 60


def _arrays() -> list[npt.NDArray[np.uint8]]:
    """Some that differ, as those of a camera do."""
    source = np.random.default_rng(1)
    return [source.integers(0, 255, (1024, 8192), np.uint8) for _ in range(4)]


def _look(array: npt.NDArray[np.uint8]) -> int:
    return int(array.reshape(-1)[::PAGE].sum())


async def _publish(line: Line, address: str, count: int, shared: bool) -> int:
    arrays = _arrays()
    async with connect(address, connection=ConnectionSettings(shared_memory=shared)) as bus:
        await bus.publish("bench.ready")
        await bus.flush()
        line.ready()
        for number in range(WARM):
            await bus.publish(TOPIC, arrays[number % 4])
        await bus.flush()
        began_ns = time.perf_counter_ns()
        for number in range(count):
            await bus.publish(TOPIC, arrays[number % 4])
        await bus.flush()
    return began_ns


async def publish_shared(line: Line, address: str, count: int) -> int:
    return await _publish(line, address, count, shared=True)


async def publish_inline(line: Line, address: str, count: int) -> int:
    return await _publish(line, address, count, shared=False)


async def _subscribe(line: Line, address: str, count: int, shared: bool) -> int:
    left = count + WARM
    settings = ConnectionSettings(shared_memory=shared)
    async with connect(address, connection=settings) as bus, bus.subscribe(TOPIC) as stream:
        line.ready()
        async for message in stream:
            _look(message.decode(np.ndarray))
            left -= 1
            if not left:
                break
        return time.perf_counter_ns()


async def subscribe_shared(line: Line, address: str, count: int) -> int:
    return await _subscribe(line, address, count, shared=True)


async def subscribe_inline(line: Line, address: str, count: int) -> int:
    return await _subscribe(line, address, count, shared=False)


async def publish_nats(line: Line, address: str, count: int) -> int:
    arrays = _arrays()
    async with await nats.connect(address) as connection:
        await connection.flush()
        line.ready()
        for number in range(WARM):
            await connection.publish(TOPIC, arrays[number % 4].tobytes())
        await connection.flush(FLUSH_S)
        began_ns = time.perf_counter_ns()
        for number in range(count):
            await connection.publish(TOPIC, arrays[number % 4].tobytes())
            # So that it leaves while the next one is made.
            await asyncio.sleep(0)
        await connection.flush(FLUSH_S)
    return began_ns


async def subscribe_nats(line: Line, address: str, count: int) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    left = count + WARM

    async def take(message: Msg) -> None:
        nonlocal left
        _look(np.frombuffer(message.data, np.uint8).reshape(1024, 8192))
        left -= 1
        if not left:
            ended.set_result(time.perf_counter_ns())

    async with await nats.connect(address) as connection:
        await connection.subscribe(TOPIC, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
        await connection.flush()
        line.ready()
        return await ended


_HUB = hub_on(UNIX)
_WORKERS = crew(2)
_PAIRS = {
    OURS: Pair(_HUB, publish_shared, subscribe_shared),
    OFF: Pair(_HUB, publish_inline, subscribe_inline),
    NATS: Pair(nats_core.NATS, publish_nats, subscribe_nats),
}
_MEASURES = {name: partial(rate, pair=pair, crew=_WORKERS) for name, pair in _PAIRS.items()}

CASE = Case(
    name="two-planes",
    question="arrays of 8 MiB from one process to another through a hub, with and without shared memory",
    unit="arrays/s",
    better="more",
    ours=_MEASURES[OURS],
    peers={OFF: _MEASURES[OFF], NATS: _MEASURES[NATS]},
    target={OFF: 3.0, NATS: 2.0},
    size=20,
    around=partial(together, _WORKERS, _HUB, nats_core.NATS),
)
