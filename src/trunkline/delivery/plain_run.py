"""A run: plain messages that one bus publishes one after the other on one topic, kept as columns.

They are sent as columns, and most publishers never read what they have published. So a message is built only when it is
read.
"""

from __future__ import annotations

from itertools import repeat
from typing import Protocol

from trunkline.message import Message
from trunkline.unchecked import number_all, unchecked_many


class RunLane(Protocol):
    """The lane that a run is in."""

    topic: str
    has_subscribers: bool
    in_flight: int


class PlainRun:
    """While it is shorter than `room`, its bus may append to its columns. The lane counts it when it is closed."""

    __slots__ = (
        "_first",
        "_messages",
        "content_type",
        "ids",
        "lane",
        "payloads",
        "room",
        "routed",
        "sender",
        "times",
    )

    def __init__(self, lane: RunLane | None, sender: str, content_type: str, room: int) -> None:
        self.lane = lane
        self.routed = lane is None or lane.has_subscribers
        self.sender = sender
        self.content_type = content_type
        self.room = room
        """0 when it is closed."""
        self.ids: list[str] = []
        self.payloads: list[bytes] = []
        self.times: list[int] = []
        self._first = 0
        self._messages: list[Message] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def close(self) -> None:
        """Nothing more is appended."""
        if self.room and self.lane is not None:
            self.room = 0
            self.lane.in_flight += len(self.ids)

    @property
    def messages(self) -> list[Message]:
        """Built once: everybody who looks sees the same messages. The run is closed then."""
        if self._messages is None:
            self.close()
            first, count = self._first, len(self.ids)
            assert self.lane is not None
            self._messages = unchecked_many(
                self.ids,
                repeat(self.lane.topic),
                self.payloads,
                self.times,
                range(first, first + count) if first else repeat(0),
                repeat(self.sender),
                repeat(self.content_type),
            )
        return self._messages

    def number(self, first: int) -> None:
        """Give its messages consecutive numbers."""
        self._first = first
        if self._messages is not None:
            number_all(self._messages, first)


NO_RUN = PlainRun(None, "", "", 0)
