"""A bus on a hub keeps the contract of every broker: in virtual time, and over real sockets."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from trunkline import Broker, MemoryBroker, World
from trunkline.brokers.hub.broker import HubBroker
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker
from trunkline.testing import CONTRACT, Promise, simulate, world

SEEDS = range(5)


@asynccontextmanager
async def plain(world: World) -> AsyncIterator[Broker]:
    """A hub and one client of it, in one event loop."""
    async with Hub(MemoryBroker(world)) as hub:
        address = await hub.listen("pair:contract")
        broker = HubBroker(address, world)
        await broker.connection.ready()
        yield broker
        await broker.aclose()


@asynccontextmanager
async def journaled(world: World) -> AsyncIterator[Broker]:
    with tempfile.TemporaryDirectory() as folder:
        engine = JournalBroker(Journal(folder, world=world, threaded=False), owns_journal=True)
        async with Hub(engine) as hub:
            address = await hub.listen("pair:contract")
            broker = HubBroker(address, world)
            await broker.connection.ready()
            yield broker
            await broker.aclose()


HUBS: dict[str, Callable[[World], AbstractAsyncContextManager[Broker]]] = {"plain": plain, "journal": journaled}


@pytest.mark.parametrize("make", HUBS.values(), ids=HUBS)
@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_keeps(promise: Promise, make: Callable[[World], AbstractAsyncContextManager[Broker]]) -> None:
    for seed in SEEDS:
        simulate(lambda simulation: promise(lambda: make(world(simulation))), seed=seed)
