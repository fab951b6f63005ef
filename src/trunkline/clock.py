"""Clock, ids and random numbers, injected from one place.

Waiting uses the event loop (`loop.time`, `loop.call_later`): a test replaces the loop, not each wait.
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
from typing import Protocol

import uuid_utils

BLOCK_IDS = 4096
BLOCK_NS = 1_000_000
_SUFFIXES = tuple(f"{n:03x}" for n in range(BLOCK_IDS))


def _uuid7() -> str:
    return str(uuid_utils.uuid7())


def _secret() -> str:
    return secrets.token_hex(16)


def _program() -> str:
    """For example `agent.py-4711`: the name of the program or main module, and the process id."""
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.name == "__main__.py" else path.name
    return f"{program if program not in ('', '-c', '-') else 'python'}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class World:
    """The inputs from outside: the wall clock, new ids, random numbers, secrets, the name of the program."""

    time_ns: Callable[[], int] = time.time_ns
    uuid7: Callable[[], str] = _uuid7
    random: random.Random = field(default_factory=random.Random)
    secret: Callable[[], str] = _secret
    """An unpredictable text. Earlier results of `random` do not help to guess it."""
    program: Callable[[], str] = _program
    """The default name of a bus."""


class Ids:
    """UUIDv7 strings in order of time, generated in blocks.

    One real UUIDv7 is generated per millisecond; further ids increment its last 12 bits. An id takes 70 ns instead of
    230 ns.
    """

    __slots__ = ("_uuid7", "block", "ends_ns")

    def __init__(self, uuid7: Callable[[], str]) -> None:
        self._uuid7 = uuid7
        self.block: Iterator[str] = iter(())
        self.ends_ns = 0

    def open(self, now_ns: int) -> str:
        """Start a new block and return its first id."""
        self.block = map(add, repeat(self._uuid7()[:-3]), _SUFFIXES)
        self.ends_ns = now_ns + BLOCK_NS
        return next(self.block)

    def next(self, now_ns: int) -> str:
        if now_ns > self.ends_ns:
            return self.open(now_ns)
        return next(self.block, None) or self.open(now_ns)

    def reserve(self, count: int, now_ns: int) -> list[str]:
        """Up to `count` ids of one block, but at least one. They may be used until `ends_ns`."""
        return [self.next(now_ns), *islice(self.block, count - 1)]

    def take(self, count: int, now_ns: int) -> list[str]:
        """Several ids at once."""
        ids = [self.next(now_ns)] if count else []
        while (missing := count - len(ids)) > 0:
            ids.extend(islice(self.block, missing))
            if len(ids) < count:
                ids.append(self.open(now_ns))
        return ids


class Unnumbered(Protocol):
    """Accepted messages that have no numbers yet."""

    def close(self) -> None:
        """Assign the next numbers to the messages, and accept no more. Closing twice is allowed."""


class Sequence:
    """Numbers accepted messages: 1, 2, 3, … There is one for each broker, shared by all its publishers."""

    __slots__ = ("number", "unnumbered")

    def __init__(self, last: int = 0) -> None:
        self.number = last
        """The last number that was assigned. Code that assigns the next one must close `unnumbered` first."""
        self.unnumbered: Unnumbered | None = None
        """A run that is still open.

        It gets its numbers when the next number is assigned, or the last number is read.
        """

    @property
    def last(self) -> int:
        """The number of the last message that was accepted."""
        if self.unnumbered is not None:
            self.unnumbered.close()
        return self.number

    @last.setter
    def last(self, number: int) -> None:
        self.number = number

    def raise_to(self, number: int) -> None:
        """Record that this number was assigned elsewhere."""
        if number > self.number:
            self.number = number

    def reserve(self, count: int) -> int:
        """Reserve `count` numbers. Returns the first."""
        if self.unnumbered is not None:
            self.unnumbered.close()
        first = self.number + 1
        self.number += count
        return first

    def next(self) -> int:
        return self.reserve(1)
