"""Publishers and subscribers of arrays: through a hub with and without shared memory, and through NATS."""

from __future__ import annotations

import asyncio
import time

import nats
import numpy as np
import numpy.typing as npt
from nats.aio.msg import Msg

from benchmarks.durable import TOPIC
from benchmarks.processes import Line
from trunkline import ConnectionSettings, connect

PAGE = 4096
WARM = 16
"""The number of arrays that are sent before the measurement."""
FLUSH_S = 60


def _arrays() -> list[npt.NDArray[np.uint8]]:
    """Several different arrays, like the pictures of a camera."""
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
            # So that it is sent while the next one is prepared.
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
