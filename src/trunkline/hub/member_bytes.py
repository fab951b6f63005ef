"""Limits the bytes that wait in the hub for one member of a group. An inbox limits only the number of messages."""

from __future__ import annotations

from typing import Final

from trunkline.delivery.inbox import Inbox
from trunkline.message import Message

USUAL_BYTES: Final = 300
"""The size of a message without payload and headers."""


class MemberBytes:
    """Reduces the capacity of an inbox while its messages have more than `limit` bytes.

    Its overflow policy then applies. A single larger message is still accepted. The gate of the inbox adds the size of
    each message to a sum, which is an upper bound. The waiting messages are measured only when the sum exceeds the
    limit.
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
        """Called when messages were taken out of the inbox."""
        if self._inbox.capacity < self._capacity:
            self._count()

    def _count(self) -> None:
        inbox = self._inbox
        # Messages of waiting publishers come last and are not included. The window of each publisher limits them.
        waiting = inbox.messages()[: inbox.depth]
        size = sum(map(_size, waiting))
        if size < self._limit:
            self._most = size
            inbox.capacity = self._capacity
        else:
            # Measured again after another quarter of the limit, not for each message that is offered while the inbox is
            # full.
            self._most = self._limit - self._limit // 4
            inbox.capacity = min(self._capacity, max(1, len(waiting) * self._limit // size))
        inbox.admit()


def _size(message: Message) -> int:
    return len(message.payload) + (USUAL_BYTES if message.headers is None else message.header_bytes)
