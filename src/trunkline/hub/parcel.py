"""A parcel: one batch on its way through the hub. It is routed by its topic, and opened only where a rule needs to."""

from __future__ import annotations

from typing import Any, Protocol

from trunkline import columns
from trunkline.message import Message
from trunkline.wire.control import Failure
from trunkline.wire.frames import PublishHead

OPEN_BYTES = 300


class Publisher(Protocol):
    """Who is told what became of a parcel."""

    def settled(self, parcel: Parcel) -> None: ...


class Parcel:
    __slots__ = (
        "again",
        "body",
        "count",
        "failures",
        "first",
        "number",
        "origin",
        "position",
        "priority",
        "publisher",
        "rank",
        "topic",
        "urgent",
        "waiting",
    )

    def __init__(self, publisher: Publisher | None, head: PublishHead, body: bytes, origin: int = 0) -> None:
        self.publisher = publisher
        self.number = head.number
        self.topic = head.topic
        self.count = head.count
        self.priority = head.priority
        self.rank = head.priority
        """What it counts among others: the priority its publisher gave it, or that of its channel."""
        self.again = head.again
        self.urgent = head.urgent
        self.origin = origin
        self.position = head.position
        self.body = body
        self.first = 0
        """The number of its first message; 0 while it has none."""
        self.waiting = 1
        """In how many places it still waits; one of them is the hub itself, while it hands it out."""
        self.failures: list[Failure] = []

    @property
    def size(self) -> int:
        """What it takes in memory, at the most: some of it may be opened."""
        return len(self.body) + OPEN_BYTES * self.count

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def done(self) -> None:
        """One place less."""
        self.waiting -= 1
        if not self.waiting and self.publisher is not None:
            self.publisher.settled(self)

    def fail(self, index: int, code: str, text: str, **details: Any) -> None:
        self.failures.append(Failure(batch=self.number, index=index, code=code, text=text, details=details))

    def open(self) -> list[Message]:
        """Its messages, with their numbers; raises InvalidPayload if it holds something else."""
        first = self.first or 1
        return columns.read(self.topic, self.body, range(first, first + self.count))


class Piece:
    """A parcel, or a part of one, as it waits for one subscriber."""

    __slots__ = ("body", "count", "first", "parcel", "why_lost")

    def __init__(self, parcel: Parcel, first: int, count: int, body: bytes, why_lost: str = "") -> None:
        self.parcel = parcel
        self.first = first
        self.count = count
        self.body = body
        self.why_lost = why_lost
        """If it is only the word of a loss: it waits for its turn, as what it tells of would have."""

    def lose(self, why: str) -> Piece:
        """The word of its loss."""
        return Piece(self.parcel, self.first, self.count, b"", why)

    @property
    def priority(self) -> int:
        """Its place among others that wait."""
        return self.parcel.rank

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def position(self) -> int:
        """How many messages its publisher has published on its topic before."""
        return self.parcel.position + self.first - self.parcel.first

    def split(self, count: int) -> tuple[Piece, Piece]:
        """The first so many messages, and the others."""
        messages = columns.read(self.parcel.topic, self.body, range(self.first, self.first + self.count))
        return self._part(messages[:count]), self._part(messages[count:])

    def _part(self, messages: list[Message]) -> Piece:
        return Piece(self.parcel, messages[0].seq, len(messages), columns.pack_batch(messages))
