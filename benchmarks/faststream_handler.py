"""How fast does a typed handler receive messages through a nats-server, compared with FastStream?

Publisher and handler run in separate processes. The handler receives a typed order. Both sides publish one by one.
The result is messages per second of processor time of both clients.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from functools import partial

import msgspec

from benchmarks import nats_core
from benchmarks.durable import TOPIC
from benchmarks.harness import OURS, Case
from benchmarks.processes import Line, crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, client_rate
from trunkline import connect

FASTSTREAM = "FastStream"
TEXT = "x" * 80


class Order(msgspec.Struct):
    number: int
    text: str


async def publish(line: Line, address: str, count: int) -> int:
    async with connect(address) as bus:
        await bus.publish("ready")
        await bus.flush()
        line.ready()
        began_ns = time.perf_counter_ns()
        for number in range(count):
            await bus.publish(TOPIC, Order(number, TEXT))
        await bus.flush()
    return began_ns


async def handle(line: Line, address: str, count: int) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    left = count
    async with connect(address) as bus:

        @bus.on(TOPIC)
        async def take(order: Order) -> None:
            nonlocal left
            left -= 1
            if not left:
                ended.set_result(time.perf_counter_ns())

        await bus.flush()
        line.ready()
        return await ended


async def peer_publish(line: Line, address: str, count: int) -> int:
    from faststream.nats import NatsBroker
    from pydantic import BaseModel

    class Order(BaseModel):  # As users of FastStream write it.
        number: int
        text: str

    async with NatsBroker(address, logger=None) as broker:
        line.ready()
        began_ns = time.perf_counter_ns()
        for number in range(count):
            await broker.publish(Order(number=number, text=TEXT), TOPIC)
    return began_ns


async def peer_handle(line: Line, address: str, count: int) -> int:
    from faststream.nats import NatsBroker
    from pydantic import BaseModel

    class Order(BaseModel):
        number: int
        text: str

    logging.disable(logging.INFO)
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    left = count
    broker = NatsBroker(address, logger=None)

    async def take(order: Order) -> None:
        nonlocal left
        left -= 1
        if not left:
            ended.set_result(time.perf_counter_ns())

    # Real types for FastStream: the annotations of this module are strings at run time.
    take.__annotations__ = {"order": Order, "return": None}
    broker.subscriber(TOPIC)(take)
    await broker.start()
    line.ready()
    ended_ns = await ended
    await broker.stop()
    return ended_ns


_workers = crew(2)
_sides = {
    OURS: Pair(nats_core.NATS, publish, handle),
    FASTSTREAM: Pair(nats_core.NATS, peer_publish, peer_handle),
}
_installed = importlib.util.find_spec("faststream") is not None
CASE = Case(
    name="faststream",
    question="messages through a nats-server into a typed handler, 100 bytes",
    unit="messages/CPU s",
    better="more",
    ours=partial(client_rate, pair=_sides[OURS], crew=_workers),
    peers={FASTSTREAM: partial(client_rate, pair=_sides[FASTSTREAM], crew=_workers)} if _installed else {},
    target={FASTSTREAM: 20.0},
    absent={} if _installed else {FASTSTREAM: "FastStream is not installed: pip install '.[bench]'"},
    size=5000,
    around=partial(together, _workers, nats_core.NATS),
)
