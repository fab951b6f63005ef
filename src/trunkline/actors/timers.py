"""Timers of an incarnation: messages that it sends to itself later, once or repeatedly."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import UsageError

if TYPE_CHECKING:
    from trunkline.actors.context import ContextCell


class ReceiveTimeout(msgspec.Struct, frozen=True):
    """Sent to an actor that has set a receive timeout, when it has handled no message for that long."""

    __schema__ = "trunkline.ReceiveTimeout"

    after_s: float


class Timer:
    """A message that is sent later, or repeatedly. It ends with the incarnation that set it.

    After `cancel`, no message is handled any more, not even one that is already in the mailbox.
    """

    __slots__ = ("_cell", "_handle", "_next_at", "_payload", "_period_s", "_steady", "_timers", "cancelled", "key")

    def __init__(self, timers: Timers, payload: object, key: Hashable) -> None:
        self._timers = timers
        self._cell = timers.cell
        self._payload = payload
        self.key = key
        self._period_s: float | None = None
        self._steady = False
        self._next_at = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self.cancelled = False

    def start(self, delay_s: float, period_s: float | None, *, steady: bool) -> None:
        """With `steady`, the next time is one period after the last due time, otherwise one period after the actual
        send.
        """
        loop = asyncio.get_running_loop()
        self._period_s, self._steady = period_s, steady
        self._next_at = loop.time() + delay_s
        self._handle = loop.call_at(self._next_at, self._ring)

    def cancel(self) -> None:
        self.cancelled = True
        self._end()

    def _end(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._timers.forget(self)

    @property
    def active(self) -> bool:
        """Whether it will send a message."""
        return self._handle is not None

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        if self._period_s is None:
            self._end()
        else:
            self._next_at = (self._next_at if self._steady else loop.time()) + self._period_s
            self._handle = loop.call_at(self._next_at, self._ring)
        self._cell.send_timed(self._payload, self)


class Timers:
    """The timers of one incarnation."""

    __slots__ = ("_all", "_by_key", "cell")

    def __init__(self, cell: ContextCell) -> None:
        self.cell = cell
        self._all: set[Timer] = set()
        self._by_key: dict[Hashable, Timer] = {}

    def start(
        self, delay_s: float, payload: object, *, key: Hashable, period_s: float | None = None, steady: bool = False
    ) -> Timer:
        if delay_s < 0 or (period_s is not None and not period_s > 0):
            raise UsageError(
                f"the time of a timer must be above 0 s, not {delay_s if period_s is None else period_s!r}"
            )
        if key is not None:
            self.cancel(key)
        timer = Timer(self, payload, key)
        timer.start(delay_s, period_s, steady=steady)
        self._all.add(timer)
        if key is not None:
            self._by_key[key] = timer
        return timer

    def cancel(self, key: Hashable) -> bool:
        timer = self._by_key.pop(key, None)
        if timer is None:
            return False
        active = timer.active
        timer.cancel()
        return active

    def find(self, key: Hashable) -> Timer | None:
        timer = self._by_key.get(key)
        return timer if timer is not None and timer.active else None

    def forget(self, timer: Timer) -> None:
        self._all.discard(timer)

    def end(self) -> None:
        """Cancel all timers. Called when the incarnation has ended."""
        for timer in {*self._all, *self._by_key.values()}:
            timer.cancel()


class QuietTimer:
    """Sends a ReceiveTimeout when an actor has handled no message for a while."""

    __slots__ = ("_cell", "_handle", "_timeout_s")

    def __init__(self, cell: ContextCell, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise UsageError(f"a receive timeout must be above 0 s, or None for no limit, not {timeout_s!r}")
        self._cell = cell
        self._timeout_s = timeout_s
        loop = asyncio.get_running_loop()
        cell.last_at = loop.time()
        self._handle = loop.call_later(timeout_s, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        cell = self._cell
        last_at = cell.last_at if cell.last_at is not None else loop.time()
        due = last_at + self._timeout_s
        if cell.busy:
            due = loop.time() + self._timeout_s
        elif loop.time() >= due:
            cell.last_at = loop.time()
            due = loop.time() + self._timeout_s
            cell.send_timed(ReceiveTimeout(self._timeout_s), None)
        self._handle = loop.call_at(due, self._look)

    def cancel(self) -> None:
        self._handle.cancel()
        self._cell.last_at = None
