"""An entry of an engine that this process holds, and its messages that are not settled."""

from __future__ import annotations

from trunkline import columns
from trunkline.brokers.engine.batches import BatchHead
from trunkline.delivery.ranges import Ranges


class HeldEntry:
    """An entry that was delivered to this process, and is not acknowledged."""

    __slots__ = ("_columns", "body", "first", "head", "key", "last", "noted", "open", "token", "topic")

    def __init__(self, token: str, topic: str, head: BatchHead, first: int, body: memoryview) -> None:
        self.token = token
        self.topic = topic
        self.head = head
        self.first = first
        """The number of its first message."""
        self.last = first + head.count - 1
        self.key = f"{first}-{self.last}"
        """The key of its note. A part of an entry that was given back is an entry of its own."""
        self.body = body
        self._columns: columns.Body | None = None
        self.open = Ranges()
        """The numbers of its messages that are not settled."""
        self.open.add(first, self.last)
        self.noted = False
        """Whether the engine may have a note on this entry."""

    def opened(self) -> columns.Body:
        """The columns of the entry. Raises InvalidPayload."""
        if self._columns is None:
            self._columns = columns.open_batch(self.body, self.head.count)
        return self._columns
