"""The output of the demo: chapters, checked claims, and progress while something takes long."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

WIDTH = 78
BEAT_S = 2.0
LINE_BEATS = 5
"""Where output is not a terminal, a line every so many beats."""
CLEAR = "\r\x1b[2K"


class FalseClaim(Exception):
    """A claim of the demo is not true."""


class Narrator:
    """Prints plain lines, so that a pipe, a log file and a terminal all show the same."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._chapter = 0
        self.checked = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def chapter(self, title: str) -> None:
        self._chapter += 1
        self.line()
        heading = f"{self._chapter}. {title}"
        self.line(heading)
        self.line("-" * len(heading))

    def say(self, text: str) -> None:
        for line in textwrap.wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False):
            self.line(line)

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    def check(self, claim: str, found: object, expected: object) -> None:
        """Print a claim if what was found is what was expected. Raises FalseClaim otherwise."""
        if found != expected:
            raise FalseClaim(f"{claim.format(expected)}\n  found     {found}\n  expected  {expected}")
        self.checked += 1
        self.line(f"  ok  {claim.format(found)}")

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[Waiting]:
        """Show what the demo waits for, for the duration of the block."""
        waiting = Waiting(what)
        beating = asyncio.create_task(waiting.beat())
        try:
            yield waiting
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating


class Waiting:
    """On a terminal, one line that changes every two seconds and is removed at the end. Elsewhere, a line for each
    step, and one every ten seconds.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._began = time.monotonic()
        self._shown = ""
        self._beats = 0

    def is_due(self) -> bool:
        """Whether this beat gets a line where output is not a terminal."""
        self._beats += 1
        if self.what == self._shown and self._beats < LINE_BEATS:
            return False
        self._shown, self._beats = self.what, 0
        return True

    async def beat(self) -> None:
        terminal = sys.stdout.isatty()
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                text = f"  ... {time.monotonic() - self._began:.0f} s, waiting for {self.what}"
                if terminal:
                    print(f"{CLEAR}{text}", end="", flush=True)
                elif self.is_due():
                    print(text, flush=True)
        finally:
            if terminal:
                print(CLEAR, end="", flush=True)
