"""Whether a bus takes anything: it is open or paused, finishes its work, or is closed."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from trunkline.errors import BusClosed

at_work: ContextVar[bool] = ContextVar("at_work", default=False)
"""Whether this code runs on behalf of a handler: it may still publish while its bus is closing."""


class BusState(enum.StrEnum):
    OPEN = "open"
    PAUSED = "paused"
    """Open, and handlers take nothing new."""
    DRAINING = "draining"
    """Nothing new from outside; handlers finish, and may publish and ask while they do."""
    CLOSED = "closed"


class Lifecycle:
    def __init__(self, name: str, time_ns: Callable[[], int]) -> None:
        self._name = name
        self._time_ns = time_ns
        self.state = BusState.OPEN
        self.since_ns = time_ns()
        """When the state began."""

    def enter(self, state: BusState) -> None:
        if self.state is not state:
            self.state, self.since_ns = state, self._time_ns()

    def check_open(self) -> None:
        """Raise BusClosed, unless the bus is open, or is finishing its work and this is part of it."""
        if self.state is BusState.CLOSED or (self.state is BusState.DRAINING and not at_work.get()):
            raise BusClosed(self._name)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
