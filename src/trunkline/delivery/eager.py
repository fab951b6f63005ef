"""Eager steps: an idle worker continues inside the call that has a message for it, not in the next iteration.

It runs as its own task: `asyncio.current_task()`, context, timeouts and cancellation are the worker's. CPython
documents `_enter_task` and `_leave_task` for this, under "Extending".
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline.delivery.inbox import Inbox

MAX_DEPTH: Final = 8
"""Of workers that run inside each other: further ones continue in the next turn of the event loop."""
MAX_IN_A_ROW: Final = 16
"""So many requests are answered without a turn of the event loop: then others run."""


TOLD: Final = 1
EVERYONE: Final = 2
"""Whom `EagerSteps.collecting` is for: actors only, or handlers too."""


class Sleeper(asyncio.Future[None]):
    """What an idle worker awaits. `set_result` continues it in the next turn of the event loop, `step` at once."""

    _resume: Callable[[asyncio.Future[None]], object]
    _context: Context

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Context | None = None) -> None:
        # Called by the task that awaits this, with its own way to continue.
        self._resume = fn
        self._context = context  # type: ignore[assignment]  # a task always has one
        super().add_done_callback(fn, context=context)

    def step(self) -> None:
        """Run the worker until it waits again."""
        resume = self._resume
        self.remove_done_callback(resume)
        self.set_result(None)
        loop = self.get_loop()
        caller = asyncio.current_task(loop)
        if caller is None:
            self._context.run(resume, self)
            return
        asyncio._leave_task(loop, caller)
        try:
            self._context.run(resume, self)
        finally:
            asyncio._enter_task(loop, caller)


class EagerSteps:
    """Of one broker: which idle workers have something to do, and how they are run.

    Not inside a caller that is handling an error: that would become the context of the worker's own errors.
    """

    __slots__ = ("_told", "collecting", "depth", "left", "ready")

    enabled = True
    """Set to False by tests, which hold both ways equal."""

    def __init__(self) -> None:
        self.collecting = 0
        """Which inboxes note here that they have something, instead of waking who waits for it."""
        self.ready: list[Inbox] = []
        self.depth = 0
        """How many workers run inside each other."""
        self.left = MAX_IN_A_ROW
        """How many requests may still be answered before others run."""
        self._told = False

    def may_run(self) -> bool:
        return self.enabled and self.depth < MAX_DEPTH and sys.exception() is None

    def run(self) -> None:
        """Run the workers that have something to do."""
        ready, self.ready = self.ready, []
        self.depth += 1
        try:
            while ready:
                ready.pop(0).wake_now()
        finally:
            self.depth -= 1
            for inbox in ready:
                inbox.wake()

    def run_one(self, inbox: Inbox) -> None:
        """Run a worker that has something to do, in a callback of the event loop."""
        if not self.may_run():
            inbox.wake()
            return
        self.depth += 1
        try:
            inbox.wake_now()
        finally:
            self.depth -= 1

    def run_once(self) -> None:
        """As `run`, once in a turn of the event loop: what comes after the first message is handled together."""
        if self._told or not self.may_run():
            self.wake_all()
            return
        self._told = True
        asyncio.get_running_loop().call_soon(self._next_turn)
        self.run()

    def _next_turn(self) -> None:
        self._told = False

    def wake_all(self) -> None:
        """As `run`, in the next turn of the event loop."""
        while self.ready:
            self.ready.pop(0).wake()


NEVER: Final = EagerSteps()
"""Of inboxes that no broker serves."""
