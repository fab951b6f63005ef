"""Idle actors: which of them keep their tasks, and so handle the next message at once."""

from __future__ import annotations

from typing import Final

from trunkline.actors.message_loop import MessageLoop

MAX_IDLE: Final = 1000
"""The maximum number of idle actors of a system that keep their tasks: 2 KB each."""


class IdleActors:
    """The idle actors that keep their tasks: the last `MAX_IDLE` that were busy."""

    def __init__(self) -> None:
        self._cells: dict[MessageLoop, None] = {}

    def enter(self, cell: MessageLoop) -> None:
        self._cells[cell] = None
        if len(self._cells) > MAX_IDLE:
            oldest = next(iter(self._cells))
            del self._cells[oldest]
            oldest.inbox.wake()

    def leave(self, cell: MessageLoop) -> bool:
        """Remove an actor. False if it was already removed, and must end its task."""
        return self._cells.pop(cell, self) is None
