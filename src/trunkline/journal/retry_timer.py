"""One timer for all retries of a durable subscription. The backlog has their due times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trunkline.journal.backlog import Backlog, KeptMessage


class RetryTimer:
    def __init__(self, backlog: Backlog, due: Callable[[], None]) -> None:
        self._backlog = backlog
        self._due = due
        self._timer: asyncio.TimerHandle | None = None

    def postpone(self, kept: KeptMessage, now_ns: int) -> None:
        """Calls `due` when the message can be offered, which is at once if its time has passed."""
        self._backlog.postpone(kept, (kept.due_ns - now_ns) / 1e9, asyncio.get_running_loop().time())
        self._set()

    def _set(self) -> None:
        due_at_s = self._backlog.due_at_s
        if self._timer is not None and self._timer.when() != due_at_s:
            self.cancel()
        if self._timer is None and due_at_s is not None:
            self._timer = asyncio.get_running_loop().call_at(due_at_s, self._ring, due_at_s)

    def _ring(self, due_at_s: float) -> None:
        self._timer = None
        # An event loop may call slightly early: treat the expected time as reached.
        self._backlog.pass_time(max(asyncio.get_running_loop().time(), due_at_s))
        self._set()
        self._due()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
