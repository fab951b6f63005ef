"""Serving: runs a hub as a process, from its start to an orderly end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from trunkline.brokers.memory import MemoryBroker
from trunkline.clock import World
from trunkline.hub.config import HubConfig
from trunkline.hub.hub import Hub
from trunkline.journal.broker import JournalBroker
from trunkline.journal.journal import Journal
from trunkline.program import run_loop
from trunkline.scheduling import shorten_time_slice

YOUNG_OBJECTS = 10_000
"""The threshold of Python's garbage collector. Moving messages creates no reference cycles.

With the default of 700, every 350th request waited 0.1 ms for a collection, and some waited 1 ms.
"""

run = run_loop
"""Runs the event loop of a hub, or of a command that connects to one."""


@asynccontextmanager
async def hub_of(config: HubConfig, world: World | None = None) -> AsyncIterator[Hub]:
    """A hub that listens at the configured addresses. Raises OSError."""
    world = world or World()
    broker: MemoryBroker | None = None
    if config.journal is not None:
        journal = Journal(config.journal.directory, config.journal.settings(), world=world)
        broker = JournalBroker(journal, owns_journal=True)
    async with Hub(broker, settings=config.settings(), access=config.access(), world=world) as hub:
        for url in config.addresses():
            await hub.listen(url, config.keys, insecure=config.insecure)
        yield hub


async def serve(config: HubConfig, ready: Callable[[Hub], None]) -> None:
    """Run until SIGTERM or SIGINT, and then close all connections."""
    prepare_process()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    try:
        async with hub_of(config) as hub:
            # Loaded objects are permanent. Scanning them at each full collection would block the hub for 10 ms.
            gc.collect()
            gc.freeze()
            ready(hub)
            await ended.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def until_signal(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends, or until SIGTERM or SIGINT cancels it. Its cleanup is completed."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main)
    asked_to_stop = False

    def end() -> None:
        nonlocal asked_to_stop
        asked_to_stop = True
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        await task
    except asyncio.CancelledError:
        if not asked_to_stop:
            raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def prepare_process() -> None:
    """Prepare a process that only runs a hub. Call it before anything is sealed."""
    _allow_many_connections()
    shorten_time_slice()
    gc.set_threshold(YOUNG_OBJECTS)
    # Sealing takes memory in bursts, in several threads. Arrow's own allocator keeps it: 53 MiB after a quarter of an
    # hour, of which 4 were in use.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as the system permits: the usual 1,024 are too few for a hub."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
