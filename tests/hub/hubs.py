"""A hub and its clients in one event loop, in virtual time: it can end and come back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trunkline as tl
from trunkline.brokers.hub.connection import Connection
from trunkline.brokers.hub.directory import HubDirectory
from trunkline.brokers.memory import MemoryBroker
from trunkline.clock import World
from trunkline.hub.hub import Hub
from trunkline.hub.settings import HubSettings
from trunkline.journal import Journal, JournalBroker

_places = itertools.count(1)
DEADLINE_S = 60.0


class Place:
    """The address of a hub: started, stopped, disconnected from its clients, and restarted."""

    def __init__(self, world: World, folder: Path | None = None, settings: HubSettings | None = None) -> None:
        self.world = world
        self._folder = folder
        self._settings = settings
        self._runs = 0
        self.address = f"pair:hub-{next(_places)}"
        self.hub: Hub

    async def start(self) -> Hub:
        if self._folder is not None:
            journal = Journal(self._folder, world=self.world, threaded=False)
            self.hub = Hub(JournalBroker(journal, owns_journal=True), settings=self._settings)
        else:
            self._runs += 1
            broker = MemoryBroker(self.world)
            broker.sequence.last = self._runs * 1_000_000
            self.hub = Hub(broker, settings=self._settings)
        await self.hub.listen(self.address)
        return self.hub

    async def stop(self) -> None:
        await self.hub.aclose()

    def cut(self, name: str = "") -> None:
        """End connections without a goodbye: of one client, or of all."""
        for session in list(self.hub.sessions.values()):
            if name in ("", session.name):
                session.wire.abort()

    def bus(self, name: str = "bus", *, backoff_s: float = 0.05) -> tl.Bus:
        """A bus with its own connection: buses with different settings do not share one."""
        settings = tl.ConnectionSettings(connect_s=5.0 + len(name) / 1000, backoff_s=backoff_s)
        return tl.connect(self.address, name=name, world=self.world, connection=settings)

    async def back(self, *buses: tl.Bus) -> None:
        """Return when these are connected to the current hub."""
        for bus in buses:
            await self._back(bus)

    async def _back(self, bus: tl.Bus) -> None:
        connection = connection_of(bus)

        def back() -> bool:
            return connection.live and connection.welcome is not None and connection.welcome.hub == self.hub.id

        await until(back, f"{bus.name} is connected")


def connection_of(bus: tl.Bus) -> Connection:
    assert isinstance(bus.broker, tl.HubBroker)
    return bus.broker.connection


def directory_of(bus: tl.Bus) -> HubDirectory:
    assert isinstance(bus.broker, tl.HubBroker)
    return bus.broker.directory


async def received(messages: tl.Stream) -> Any:
    """The next value."""
    message = await messages.recv()
    assert message is not None
    return message.decode()


async def until(truth: Callable[[], bool], what: str) -> None:
    """Wait for a condition; nothing takes longer than DEADLINE_S."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not truth():
        assert loop.time() < deadline, f"still not: {what}"
        await asyncio.sleep(0.01)
