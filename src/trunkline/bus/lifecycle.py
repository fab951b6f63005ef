"""Whether a bus takes anything: it is open, finishes its work, or is closed."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from trunkline.errors import BusClosed

at_work: ContextVar[bool] = ContextVar("at_work", default=False)
"""Whether this code runs on behalf of a handler: it may still publish while its bus is closing."""


class BusState(enum.Enum):
    OPEN = enum.auto()
    DRAINING = enum.auto()
    """Nothing new from outside; handlers finish, and may publish and ask while they do."""
    CLOSED = enum.auto()


class Lifecycle:
    def __init__(self, name: str) -> None:
        self._name = name
        self.state = BusState.OPEN

    def check_open(self) -> None:
        """Raise BusClosed, unless the bus is open, or is finishing its work and this is part of it."""
        if self.state is not BusState.OPEN and not (self.state is BusState.DRAINING and at_work.get()):
            raise BusClosed(self._name)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
