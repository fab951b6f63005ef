"""Running a program: an event loop for it, and its end by Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

INTERRUPTED: Final = 130
"""The exit code of a program that Ctrl-C ended."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on uvloop if it is installed. Ctrl-C ends the program with exit code 130 and no traceback."""
    try:
        return run_loop(main)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop, if it is there: a hub is twice as fast on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
