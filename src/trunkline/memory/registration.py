"""The ends of a channel in the directory of a hub, for those who give a bus. Everything works without a hub, too.

An end is registered again every ten seconds, with what it counts in its metadata: `trunkline channels` shows that.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

from trunkline.brokers.broker import Broker
from trunkline.brokers.directory import Directory
from trunkline.clock import World
from trunkline.errors import HubRefused, UsageError
from trunkline.memory.metrics import MemoryEnds, told_of_channel, told_of_consumer
from trunkline.memory.receiver import FrameReceiver
from trunkline.memory.sender import FrameSender
from trunkline.topic import logical_name
from trunkline.wire.told_metrics import ToldMetrics

log = logging.getLogger("trunkline.memory")

FIRST_S = 1.0
EVERY_S = 10.0
"""After how long a hub is told what an end counts, and how often."""

T = TypeVar("T")


class BusWithDirectory(Protocol):
    """A bus, or a blocking bus. One whose broker has no directory registers nothing."""

    @property
    def broker(self) -> Broker: ...

    @property
    def memory_ends(self) -> MemoryEnds: ...


class LoopOfThread(Protocol):
    def call(self, work: Coroutine[Any, Any, T]) -> T: ...


class Registration(ABC):
    """One end of a channel and the bus it was given, if any: what is in the bus's `stats()`, and at its hub."""

    def __init__(self, bus: BusWithDirectory | None, channel: str, world: World) -> None:
        self._bus = bus
        self._channel = channel
        self._world = world
        self._telling: asyncio.Task[None] | None = None
        self._before = (0, 0)

    @property
    def _directory(self) -> Directory | None:
        return None if self._bus is None else self._bus.broker.directory

    def check(self, *, blocking: bool) -> None:
        """Raises UsageError for a bus of the other kind."""
        if self._directory is None or blocking is (_thread_of(self._bus) is not None):
            return
        if blocking:
            raise UsageError("`with` takes a blocking bus (tl.connect_blocking): use `async with` for this one")
        raise UsageError("`async with` takes a bus of this event loop, not a blocking one")

    def wait(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do it in the thread of a blocking bus; nothing without one, or without a directory."""
        thread = None if self._directory is None else _thread_of(self._bus)
        if thread is None:
            work.close()
            return None
        return thread.call(work)

    async def discover(self) -> str:
        """Under which name the hub, or the file of the producer, says that the channel is found; empty if none does."""
        directory = self._directory
        found = None if directory is None else await directory.find(self._channel)
        return "" if found is None else found.shm_name

    async def enter(self) -> None:
        """Raises HubRefused. Without a hub it is registered when there is one, and again when it comes back."""
        if (directory := self._directory) is not None:
            await self._register(directory, {})
            self._per_s(0, self._world.time_ns())
            self._telling = asyncio.create_task(self._tell(directory), name=f"numbers of {self._channel}")

    def count(self) -> None:
        """From now on the bus has what this end counts in its stats, until `uncount`."""
        if self._bus is not None:
            self._count(self._bus.memory_ends)

    def uncount(self) -> None:
        if self._bus is not None:
            self._bus.memory_ends.remove(self)

    async def leave(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if (directory := self._directory) is not None:
            await self._unregister(directory)

    async def _tell(self, directory: Directory) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                await self._register(directory, {"metrics": msgspec.to_builtins(self._told(self._world.time_ns()))})
            except HubRefused as error:
                log.warning("the hub no longer accepts the metrics of %s: %s", self._channel, error)
                return
            await asyncio.sleep(EVERY_S)

    def _per_s(self, frames: int, at_ns: int) -> float:
        (had, then_ns), self._before = self._before, (frames, at_ns)
        return (frames - had) / (at_ns - then_ns) * 1e9 if then_ns and at_ns > then_ns else 0.0

    @abstractmethod
    def _count(self, ends: MemoryEnds) -> None: ...

    @abstractmethod
    def _told(self, at_ns: int) -> ToldMetrics: ...

    @abstractmethod
    async def _register(self, directory: Directory, numbers: dict[str, Any]) -> None: ...

    @abstractmethod
    async def _unregister(self, directory: Directory) -> None: ...


class ProducerRegistration(Registration):
    end: FrameSender

    def _count(self, ends: MemoryEnds) -> None:
        ends.add_producer(self, self.end.counted)

    def _told(self, at_ns: int) -> ToldMetrics:
        found = self.end.counted()
        return told_of_channel(found, at_ns, self._per_s(found.writes, at_ns))

    async def _register(self, directory: Directory, numbers: dict[str, Any]) -> None:
        about = self.end.about
        await directory.register_producer(
            about.channel,
            schema=self.end.layout.json_schema,
            version=about.settings.version,
            # A reader of another layout is refused when it attaches; a later producer may have any.
            compatibility="none",
            config=about.config,
            shm_name=logical_name(about.channel),
            metadata=self.end.metadata | numbers,
        )

    async def _unregister(self, directory: Directory) -> None:
        await directory.unregister_producer(self._channel)


class ConsumerRegistration(Registration):
    end: FrameReceiver

    def _count(self, ends: MemoryEnds) -> None:
        ends.add_consumer(self, self.end.metrics)

    def _told(self, at_ns: int) -> ToldMetrics:
        found = self.end.metrics()
        return told_of_consumer(found, at_ns, self._per_s(found.reads, at_ns))

    async def _register(self, directory: Directory, numbers: dict[str, Any]) -> None:
        about = {"plane": "memory", "wants": self.end.wants.value, "pid": os.getpid()} | numbers
        schema = self.end.layout.json_schema
        await directory.register_consumer(self._channel, self.end.name, schema=schema, metadata=about)

    async def _unregister(self, directory: Directory) -> None:
        await directory.unregister_consumer(self._channel, self.end.name)


def _thread_of(bus: BusWithDirectory | None) -> LoopOfThread | None:
    return getattr(bus, "thread", None)
