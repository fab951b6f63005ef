"""Registers producers and consumers in the directory of a hub, if they have a bus. No hub is required.

A registration is renewed every ten seconds, with the counters in its metadata. `trunkline channels` shows them.
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
from trunkline.memory.metrics import MemoryEnds, report_of_channel, report_of_consumer
from trunkline.memory.receiver import FrameReceiver
from trunkline.memory.sender import FrameSender
from trunkline.topic import logical_name
from trunkline.wire.reported_metrics import ReportedMetrics

log = logging.getLogger("trunkline.memory")

FIRST_S = 1.0
EVERY_S = 10.0
"""The interval of reports to a hub."""

T = TypeVar("T")


class BusWithDirectory(Protocol):
    """A bus or a blocking bus. Nothing is registered if its broker has no directory."""

    @property
    def broker(self) -> Broker: ...

    @property
    def memory_ends(self) -> MemoryEnds: ...


class LoopOfThread(Protocol):
    def call(self, work: Coroutine[Any, Any, T]) -> T: ...


class Registration(ABC):
    """A producer or consumer and its bus, if any: its entry in `bus.stats()`, and its registration at the hub."""

    def __init__(self, bus: BusWithDirectory | None, channel: str, world: World) -> None:
        self._bus = bus
        self._channel = channel
        self._world = world
        self._reporting: asyncio.Task[None] | None = None
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
        raise UsageError("`async with` takes a bus of this event loop (tl.connect): use `with` for a blocking one")

    def wait(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run work in the thread of a blocking bus. Does nothing without a blocking bus, or without a directory."""
        thread = None if self._directory is None else _thread_of(self._bus)
        if thread is None:
            work.close()
            return None
        return thread.call(work)

    async def discover(self) -> str:
        """The name of the channel's memory, from the hub or the file of the producer; empty if neither has it."""
        directory = self._directory
        found = None if directory is None else await directory.find(self._channel)
        return "" if found is None else found.shm_name

    async def enter(self) -> None:
        """Register the producer or consumer.

        Raises HubRefused. Without a hub, it is registered when one is available, and after each reconnection.
        """
        if (directory := self._directory) is not None:
            await self._register(directory, {})
            self._per_s(0, self._world.time_ns())
            self._reporting = asyncio.create_task(self._report(directory), name=f"metrics of {self._channel}")

    def count(self) -> None:
        """Include these counters in the stats of the bus, until `uncount`."""
        if self._bus is not None:
            self._count(self._bus.memory_ends)

    def uncount(self) -> None:
        if self._bus is not None:
            self._bus.memory_ends.remove(self)

    async def leave(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if (directory := self._directory) is not None:
            await self._unregister(directory)

    async def _report(self, directory: Directory) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                await self._register(directory, {"metrics": msgspec.to_builtins(self._metrics(self._world.time_ns()))})
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
    def _metrics(self, at_ns: int) -> ReportedMetrics: ...

    @abstractmethod
    async def _register(self, directory: Directory, numbers: dict[str, Any]) -> None: ...

    @abstractmethod
    async def _unregister(self, directory: Directory) -> None: ...


class ProducerRegistration(Registration):
    end: FrameSender

    def _count(self, ends: MemoryEnds) -> None:
        ends.add_producer(self, self.end.counted)

    def _metrics(self, at_ns: int) -> ReportedMetrics:
        found = self.end.counted()
        return report_of_channel(found, at_ns, self._per_s(found.writes, at_ns))

    async def _register(self, directory: Directory, numbers: dict[str, Any]) -> None:
        about = self.end.about
        await directory.register_producer(
            about.channel,
            schema=self.end.layout.json_schema,
            version=about.settings.version,
            # A consumer with another layout is refused when it attaches; a later producer may have any layout.
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

    def _metrics(self, at_ns: int) -> ReportedMetrics:
        found = self.end.metrics()
        return report_of_consumer(found, at_ns, self._per_s(found.reads, at_ns))

    async def _register(self, directory: Directory, numbers: dict[str, Any]) -> None:
        about = {"plane": "memory", "wants": self.end.wants.value, "pid": os.getpid()} | numbers
        schema = self.end.layout.json_schema
        await directory.register_consumer(self._channel, self.end.name, schema=schema, metadata=about)

    async def _unregister(self, directory: Directory) -> None:
        await directory.unregister_consumer(self._channel, self.end.name)


def _thread_of(bus: BusWithDirectory | None) -> LoopOfThread | None:
    return getattr(bus, "thread", None)
