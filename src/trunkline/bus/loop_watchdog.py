"""Logs a handler that blocks the event loop, with the line at which it is stuck.

There is one thread for each event loop, while a bus there has handlers that are coroutines. It checks twice in
`after_s` what the loop's thread executes. If that is a handler, it tests whether the loop responds. An idle loop is not
woken, and handling a message costs nothing. Code that holds the interpreter's lock all the time is not detected.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from types import CodeType, FrameType
from typing import Final
from weakref import WeakKeyDictionary

from trunkline.bus.dispatcher import Handler

log = logging.getLogger("trunkline.handlers")

MAX_REMEMBERED: Final = 1000
_HANDLING: Final[frozenset[CodeType]] = frozenset(
    function.__code__ for function in (Handler._handle_plain, Handler._handle, Handler._run)
)
"""The functions that call the function of a handler."""


class LoopWatchdog:
    """The watchdog of one event loop. It must be created in that loop."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._watched = threading.get_ident()
        self._answered = False
        self._named: set[tuple[str, str, int]] = set()
        """Handlers with the places where they were stuck. Each is logged once."""
        self._ended = threading.Event()
        self._thread = threading.Thread(
            # Only the thread refers to the loop, so that a closed loop is not kept alive.
            target=self._watch,
            args=(asyncio.get_running_loop(),),
            name="trunkline loop watchdog",
            daemon=True,
        )
        self.users = 0
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = missed = 0
        while not self._ended.wait(self._after_s / 2) and not loop.is_closed():
            stuck = handler_at_work(sys._current_frames().get(self._watched))
            if stuck is None or (asked and self._answered):
                asked = missed = 0
            if stuck is None:
                continue
            if not asked:
                asked, self._answered = 1, False
                try:
                    loop.call_soon_threadsafe(self._answer)
                except RuntimeError:
                    # It was closed just now.
                    return
                continue
            missed += 1
            if missed == 2:
                self._warn(*stuck)

    def _answer(self) -> None:
        self._answered = True

    def _warn(self, handler: str, frame: FrameType) -> None:
        place = (handler, frame.f_code.co_filename, frame.f_lineno)
        if place in self._named or len(self._named) >= MAX_REMEMBERED:
            return
        self._named.add(place)
        log.warning(
            "the handler %s has blocked the event loop for more than %g s, at %s:%d: run the blocking call with "
            "asyncio.to_thread, or make the handler a plain def, which runs in a thread",
            handler,
            self._after_s,
            frame.f_code.co_filename,
            frame.f_lineno,
        )


def handler_at_work(frame: FrameType | None) -> tuple[str, FrameType] | None:
    """The handler that a thread executes, and the place in its function."""
    inner: FrameType | None = None
    while frame is not None:
        if frame.f_code in _HANDLING:
            handler = frame.f_locals.get("self")
            return (handler.name, inner) if inner is not None and isinstance(handler, Handler) else None
        frame, inner = frame.f_back, frame
    return None


_watchdogs: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, LoopWatchdog]] = WeakKeyDictionary()


def watch_loop(after_s: float) -> LoopWatchdog | None:
    """The shared watchdog of this event loop; release it with `unwatch_loop`. None on virtual time."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "virtual", False):
        return None
    known = _watchdogs.setdefault(loop, {})
    if after_s not in known:
        known[after_s] = LoopWatchdog(after_s)
    known[after_s].users += 1
    return known[after_s]


def unwatch_loop(watchdog: LoopWatchdog) -> None:
    watchdog.users -= 1
    if not watchdog.users:
        for known in list(_watchdogs.values()):
            for after_s, each in list(known.items()):
                if each is watchdog:
                    del known[after_s]
        watchdog.end()
