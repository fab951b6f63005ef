"""Time and chance, injected: the one place where the engine gets its clock, its ids and its dice from.

Waiting is the event loop's business (`loop.time`, `loop.call_later`): a test replaces the loop, not each wait.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import add
from pathlib import Path

import uuid_utils

BLOCK_IDS = 4096
BLOCK_NS = 1_000_000
_SUFFIXES = tuple(f"{n:03x}" for n in range(BLOCK_IDS))


def _uuid7() -> str:
    return str(uuid_utils.uuid7())


def _secret() -> str:
    return secrets.token_hex(16)


def _program() -> str:
    """`agent.py-4711`: the program, or the module that runs as one, and the number of its process."""
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.name == "__main__.py" else path.name
    return f"{program if program not in ('', '-c', '-') else 'python'}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class World:
    """What the engine takes from outside: the wall clock, new ids, random numbers, secrets, the name of the program."""

    time_ns: Callable[[], int] = time.time_ns
    uuid7: Callable[[], str] = _uuid7
    random: random.Random = field(default_factory=random.Random)
    secret: Callable[[], str] = _secret
    """Text that nobody can guess, not even from what `random` has given before."""
    program: Callable[[], str] = _program
    """The name of a bus that is given none."""


class Ids:
    """UUIDv7 strings, in order of time, drawn in blocks.

    One real UUIDv7 a millisecond; the ids in between count its last 12 bits up. That costs 70 ns an id instead of 230.
    """

    __slots__ = ("_uuid7", "block", "ends_ns")

    def __init__(self, uuid7: Callable[[], str]) -> None:
        self._uuid7 = uuid7
        self.block: Iterator[str] = iter(())
        self.ends_ns = 0

    def open(self, now_ns: int) -> str:
        """Begin a new block and give its first id."""
        self.block = map(add, repeat(self._uuid7()[:-3]), _SUFFIXES)
        self.ends_ns = now_ns + BLOCK_NS
        return next(self.block)

    def next(self, now_ns: int) -> str:
        if now_ns > self.ends_ns:
            return self.open(now_ns)
        return next(self.block, None) or self.open(now_ns)

    def take(self, count: int, now_ns: int) -> list[str]:
        """Several ids at once."""
        ids = [self.next(now_ns)] if count else []
        while (missing := count - len(ids)) > 0:
            ids.extend(islice(self.block, missing))
            if len(ids) < count:
                ids.append(self.open(now_ns))
        return ids


class Sequence:
    """Numbers what a broker accepted: 1, 2, 3, … One per broker, shared by all who publish on it."""

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last
