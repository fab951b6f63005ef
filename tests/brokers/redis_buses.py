"""Buses on a Redis server, for tests, with access to their internals."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import trunkline as tl
from tests.brokers.redis_servers import RedisServer
from trunkline.brokers.engine.adapter import EngineAdapter
from trunkline.brokers.redis.driver import RedisDriver

DEADLINE_S = 120.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """In real time, with a deadline."""

    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    asyncio.run(in_time())


def bus_at(server: RedisServer, name: str = "bus", **settings: Any) -> tl.Bus:
    """A bus. Two of one name and with the same settings share a connection."""
    # Buses with different settings do not share a connection.
    own = {"connect_s": 30.0, "max_backoff_s": 0.1, "answer_s": 30 + sum(name.encode()) / 1e6}
    how = tl.EngineSettings(**{**own, **settings})
    return tl.Bus(tl.RedisBroker(server.url, engine=how), name=name, owns_broker=True)


def broker_of(bus: tl.Bus) -> tl.RedisBroker:
    assert isinstance(bus.broker, tl.RedisBroker)
    return bus.broker


def adapter_of(bus: tl.Bus) -> EngineAdapter:
    return broker_of(bus).adapter


def driver_of(bus: tl.Bus) -> RedisDriver:
    driver = adapter_of(bus).driver
    assert isinstance(driver, RedisDriver)
    return driver


async def opened(bus: tl.Bus) -> None:
    """Return when the server has confirmed all subscriptions."""
    for feed in list(broker_of(bus).feeds.values()):
        await feed.opening
