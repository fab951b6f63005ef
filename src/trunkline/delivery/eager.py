"""Eager steps: an idle worker continues inside the call that has a message for it, not in the next loop iteration.

The worker runs as its own task: `asyncio.current_task()`, context, timeouts and cancellation are the worker's. CPython
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
"""The maximum number of workers that run inside each other. Further ones continue in the next iteration of the event
loop."""
MAX_IN_A_ROW: Final = 16
"""After this many requests that were answered without yielding to the event loop, other tasks run."""


TOLD: Final = 1
EVERYONE: Final = 2
"""Values of `EagerSteps.collecting`: workers of actors only, or of handlers, too."""


class Sleeper(asyncio.Future[None]):
    """The future that an idle worker awaits. `set_result` continues the worker in the next iteration of the event loop,
    `step` at once.
    """

    __slots__ = ("_context", "_resume")

    _resume: Callable[[asyncio.Future[None]], object]
    _context: Context

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Context | None = None) -> None:
        # Called by the task that awaits this future. `fn` continues the task.
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
    """The idle workers of one broker that have messages to process. Runs them.

    A worker does not run inside a caller that is handling an exception: that would become the context of the worker's
    own exceptions.
    """

    __slots__ = ("_has_run", "collecting", "depth", "left", "ready")

    enabled = True
    """Tests set it to False, to check that the behaviour is the same without eager steps."""

    def __init__(self) -> None:
        self.collecting = 0
        """Which inboxes add themselves to `ready` instead of waking a sleeper: `TOLD`, `EVERYONE`, or 0 for none."""
        self.ready: list[Inbox] = []
        self.depth = 0
        """How many workers run inside each other."""
        self.left = MAX_IN_A_ROW
        """The number of requests that may still be answered before other tasks run."""
        self._has_run = False

    def may_run(self) -> bool:
        return self.enabled and self.depth < MAX_DEPTH and sys.exception() is None

    def run(self) -> None:
        """Run the workers that have messages to process."""
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
        """Run a worker that has messages to process, in a callback of the event loop."""
        # The same condition as in `may_run`.
        if not self.enabled or self.depth >= MAX_DEPTH or sys.exception() is not None:
            inbox.wake()
            return
        self.depth += 1
        try:
            inbox.wake_now()
        finally:
            self.depth -= 1

    def run_once(self) -> None:
        """Like `run`, but once per iteration of the event loop: messages after the first are processed together, in the
        next iteration.
        """
        if self._has_run or not self.may_run():
            self.wake_all()
            return
        self._has_run = True
        asyncio.get_running_loop().call_soon(self._next_iteration)
        self.run()

    def _next_iteration(self) -> None:
        self._has_run = False

    def wake_all(self) -> None:
        """Like `run`, but in the next iteration of the event loop."""
        while self.ready:
            self.ready.pop(0).wake()


NEVER: Final = EagerSteps()
"""For inboxes without a broker."""
