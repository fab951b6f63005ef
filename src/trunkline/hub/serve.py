"""Serving: runs a hub as a process, from its start to an orderly end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from trunkline.brokers.broker import Broker
from trunkline.brokers.memory import MemoryBroker
from trunkline.clock import World
from trunkline.hub.config import HubConfig
from trunkline.hub.hub import Hub
from trunkline.journal.broker import JournalBroker
from trunkline.journal.journal import Journal
from trunkline.program import run_loop
from trunkline.scheduling import shorten_time_slice

YOUNG_OBJECTS = 10_000
"""New objects before Python looks for cycles among them. Moving messages makes no cycles. With Python's 700, each 350th
request waited 0.1 ms for that, and some 1 ms."""

run = run_loop
"""For a hub, and for commands that talk to one."""


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
            # What is loaded stays: looking at it again at each full collection takes 10 ms, in which nobody is served.
            gc.collect()
            gc.freeze()
            ready(hub)
            await ended.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def until_signal(main: Coroutine[Any, Any, None]) -> None:
    """Run it until it ends, or until SIGTERM or SIGINT, which cancel it: what it has open is closed then."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main)
    told = False

    def end() -> None:
        nonlocal told
        told = True
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        await task
    except asyncio.CancelledError:
        if not told:
            raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def prepare_process() -> None:
    """What a process that is a hub, and nothing else, needs. Call it before anything is sealed."""
    _allow_many_connections()
    shorten_time_slice()
    gc.set_threshold(YOUNG_OBJECTS)
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
