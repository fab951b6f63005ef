"""What an engine has stored, for readers that keep their place themselves: entries by number.

Whoever reads leaves nothing behind at the engine, and acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from trunkline.brokers.engine.driver import Entry


class LogState(NamedTuple):
    stream: str
    """Its name at the engine. The namespace is in it."""
    run: str
    """The identity of the store: another one numbers from the beginning."""
    last: int
    """The number of its last entry."""


class LogBeginning(NamedTuple):
    first: int
    """The first entry that is there."""
    removed: int
    """The last entry that is known to be removed. Between the two are others that are there."""


class RemovedEntries(NamedTuple):
    """Entries that are gone, as far as the engine tells."""

    first: int
    last: int
    topic: str = ""
    """Empty if nobody knows."""


class LogPage(NamedTuple):
    entries: list[Entry]
    removed: list[RemovedEntries]


class EngineLog(Protocol):
    """One connection, to be opened once. Raises EngineUnavailable, and StoreUnusable if nothing was ever stored."""

    name: str
    """Of the broker: "nats", "redis"."""
    url: str
    """Without passwords, for error texts."""

    async def connect(self) -> None: ...

    async def aclose(self) -> None: ...

    async def state(self) -> LogState: ...

    async def beginning(self, pattern: str) -> LogBeginning:
        """Of the topics that match. If there is nothing, `first` is beyond the last entry."""

    def pages(self, pattern: str, first: int, last: int) -> AsyncIterator[LogPage]:
        """All entries from `first` to `last` on topics that match. Within a topic they are in order."""
