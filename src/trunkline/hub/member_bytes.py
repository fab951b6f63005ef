"""The bytes that wait in the hub for one member of a group. An inbox counts messages: many large ones take too much."""

from __future__ import annotations

from typing import Final

from trunkline.delivery.inbox import Inbox
from trunkline.message import Message

USUAL_BYTES: Final = 300
"""The size of a message without payload and headers."""


class MemberBytes:
    """Makes the capacity of an inbox smaller while its messages have more than `limit` bytes.

    Then its overflow policy applies, as if it were full. A single larger message still passes. The gate of the inbox
    sees each message, and so the sum here is an upper bound. The messages are counted only if it exceeds the limit.
    """

    def __init__(self, inbox: Inbox, limit: int) -> None:
        self._inbox = inbox
        self._limit = limit
        self._capacity = inbox.capacity
        self._most = 0
        inbox.gate = self._weigh

    def _weigh(self, message: Message) -> None:
        self._most += _size(message)
        if self._most > self._limit:
            self._count()

    def taken(self) -> None:
        """Messages were taken out."""
        if self._inbox.capacity < self._capacity:
            self._count()

    def _count(self) -> None:
        inbox = self._inbox
        # Those of waiting publishers come last. They are bounded by what a publisher may have unconfirmed.
        waiting = inbox.messages()[: inbox.depth]
        size = sum(map(_size, waiting))
        if size < self._limit:
            self._most = size
            inbox.capacity = self._capacity
        else:
            # Counted again after a quarter more, and not for each message that is offered while it is full.
            self._most = self._limit - self._limit // 4
            inbox.capacity = min(self._capacity, max(1, len(waiting) * self._limit // size))
        inbox.admit()


def _size(message: Message) -> int:
    return len(message.payload) + (USUAL_BYTES if message.headers is None else message.header_bytes)
