"""Serving: a hub as a process, from its start to an orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from trunkline.brokers.broker import Broker
from trunkline.brokers.memory import MemoryBroker
from trunkline.clock import World
from trunkline.hub.config import HubConfig
from trunkline.hub.hub import Hub
from trunkline.journal.broker import JournalBroker
from trunkline.journal.journal import Journal

T = TypeVar("T")


@asynccontextmanager
async def hub_of(config: HubConfig, world: World | None = None) -> AsyncIterator[Hub]:
    """A hub that listens where the configuration says. Raises OSError if it cannot."""
    world = world or World()
    broker: Broker
    if config.journal is not None:
        journal = Journal(config.journal.directory, config.journal.settings(), world=world)
        broker = JournalBroker(journal, owns_journal=True)
    else:
        broker = MemoryBroker(world)
        # Numbers go on rising over restarts, as those of a journal do: a subscriber's books stay true.
        broker.sequence.last = world.time_ns() // 1000
    async with Hub(broker, settings=config.settings(), access=config.access(), world=world) as hub:
        for url in config.addresses():
            await hub.listen(url, config.keys, insecure=config.insecure)
        yield hub


async def serve(config: HubConfig, ready: Callable[[Hub], None]) -> None:
    """Until SIGTERM or SIGINT; then say goodbye to everybody."""
    prepare_process()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    try:
        async with hub_of(config) as hub:
            ready(hub)
            await ended.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def prepare_process() -> None:
    """What a process that is a hub, and nothing else, needs. Call it before anything is sealed."""
    _allow_many_connections()
    # Sealing takes memory in bursts, in several threads. Arrow's own allocator keeps it: 53 MiB after a quarter of an
    # hour, of which 4 were in use.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def _allow_many_connections() -> None:
    """As many as the system lets us have: the usual limit of 1,024 files is for programs, not for hubs."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def run(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop, if it is there: a hub is twice as fast on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
