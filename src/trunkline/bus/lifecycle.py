"""The state of a bus: new, open, paused, draining or closed."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final

from trunkline.errors import BusClosed, UsageError

at_work: ContextVar[bool] = ContextVar("at_work", default=False)
"""Whether this code runs inside a handler, which may still publish while its bus is closing."""


class BusState(enum.StrEnum):
    NEW = "new"
    """Not entered yet."""
    OPEN = "open"
    PAUSED = "paused"
    """Open, but handlers take no new messages."""
    DRAINING = "draining"
    """Nothing new is accepted from outside. Handlers finish; they may publish and request while they do."""
    CLOSED = "closed"


OPEN: Final = BusState.OPEN
"""A module constant, as every request checks it: on Python 3.11, looking it up in the class takes 860 instructions.
"""


class Lifecycle:
    def __init__(self, name: str, time_ns: Callable[[], int]) -> None:
        self.name = name
        self._time_ns = time_ns
        self.state = BusState.NEW
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the bus was entered."""
        self.since_ns = time_ns()
        """The time of the last change of state."""

    def enter(self, state: BusState) -> None:
        if self.state is not state:
            self.state, self.since_ns = state, self._time_ns()

    def open(self) -> None:
        """Record that the bus was entered. A closed bus stays closed."""
        self.loop = asyncio.get_running_loop()
        if self.state is BusState.NEW:
            self.enter(BusState.OPEN)

    def check_loop(self) -> None:
        """Raise UsageError in another event loop than the one that the bus was entered in."""
        if self.loop is not None and asyncio._get_running_loop() not in (self.loop, None):
            raise UsageError(
                f"the bus {self.name!r} belongs to another event loop: connect in the loop that uses it,"
                " or give threads bus.from_thread()"
            )

    def check_open(self) -> None:
        """Raise BusClosed, unless the bus is open, or is draining and the caller is one of its handlers.

        Raises UsageError if it was not entered, or belongs to another event loop.
        """
        if self.state is OPEN:
            self.check_loop()
            return
        if self.state is BusState.NEW:
            raise UsageError(
                f"the bus {self.name!r} is not open yet: write `async with connect(...) as bus:`,"
                " and use it inside that block"
            )
        self.check_not_closed()

    def check_not_closed(self) -> None:
        """As `check_open`, for operations that are allowed before the bus is entered."""
        self.check_loop()
        if self.state is OPEN:
            return
        if self.state is BusState.CLOSED or (self.state is BusState.DRAINING and not at_work.get()):
            raise BusClosed(self.name)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
