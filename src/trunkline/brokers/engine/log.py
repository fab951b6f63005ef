"""The entries that an engine has stored, by number, for readers that keep their position themselves.

A reader leaves nothing behind at the engine, and acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from trunkline.brokers.engine.driver import Entry


class LogState(NamedTuple):
    stream: str
    """Its name at the engine, including the namespace."""
    run: str
    """The identity of the store. A new store numbers its entries from the beginning."""
    last: int
    """The number of its last entry."""


class LogBeginning(NamedTuple):
    first: int
    """The first entry that still exists."""
    removed: int
    """The last entry that is known to be removed. If it comes after `first`, other entries between the two still
    exist."""


class RemovedEntries(NamedTuple):
    """Entries that were removed, as far as the engine reports them."""

    first: int
    last: int
    topic: str = ""
    """Empty if it is not known."""


class LogPage(NamedTuple):
    entries: list[Entry]
    removed: list[RemovedEntries]


class EngineLog(Protocol):
    """One connection, which is opened once. Raises EngineUnavailable, and StoreUnusable if nothing was ever stored."""

    name: str
    """The name of the broker: "nats", "redis"."""
    url: str
    """The URL without passwords, for error texts."""

    async def connect(self) -> None: ...

    async def aclose(self) -> None: ...

    async def state(self) -> LogState: ...

    async def beginning(self, pattern: str) -> LogBeginning:
        """The first entries on the topics that match. If there are none, `first` is greater than the last entry."""

    def pages(self, pattern: str, first: int, last: int) -> AsyncIterator[LogPage]:
        """All entries from `first` to `last` on topics that match. Within a topic they are in order."""
