"""Unopened messages: plain messages that arrived or were published as columns, and are built when one of them is read.

Building the messages is most of the cost of receiving a batch. To count them, to forward them, or to take their
payloads, they need not be built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, overload

import msgspec

from trunkline import columns
from trunkline.delivery.plain_run import RunPart
from trunkline.message import Message


class UnopenedBatch(msgspec.Struct, frozen=True):
    """Messages of one topic with consecutive numbers, as they arrived."""

    topic: str
    first: int
    count: int
    body: columns.Body
    """The columns, already checked by `columns.read_plain`."""
    size: int
    """The size in bytes."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def since_ns(self) -> int:
        """When the first message was published."""
        return columns.unpack("q", self.body.times[:8])[0]

    def open(self) -> list[Message]:
        return columns.build(self.topic, self.body, range(self.first, self.first + self.count))

    def payloads(self) -> list[bytes]:
        return self.body.payloads.split(self.count)

    def split(self, count: int) -> tuple[UnopenedBatch, UnopenedBatch]:
        """The first `count` messages, and the others."""
        size = self.size * count // self.count
        front, rest = self.body.part(0, count), self.body.part(count, self.count)
        return (
            UnopenedBatch(self.topic, self.first, count, front, size),
            UnopenedBatch(self.topic, self.first + count, self.count - count, rest, self.size - size),
        )


class AdmittedMessage(msgspec.Struct, frozen=True):
    """A message whose publisher has waited for room. It comes after unopened messages."""

    message: Message
    count: int = 1

    @property
    def first(self) -> int:
        return self.message.seq

    last = first

    @property
    def since_ns(self) -> int:
        return self.message.timestamp_ns

    @property
    def size(self) -> int:
        return len(self.message.payload) + self.message.header_bytes

    def open(self) -> list[Message]:
        return [self.message]

    def payloads(self) -> list[bytes]:
        return [self.message.payload]

    def split(self, count: int) -> NoReturn:
        raise AssertionError(f"one message cannot be split: {count} were requested")


Unopened = UnopenedBatch | RunPart | AdmittedMessage


class UnopenedQueue:
    """Batches in order of arrival. They come after all open messages of normal priority."""

    __slots__ = ("_batches", "count")

    def __init__(self) -> None:
        self._batches: deque[Unopened] = deque()
        self.count = 0
        """The number of messages."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum([batch.size for batch in self._batches])

    @property
    def since_ns(self) -> int:
        """When the first message was published; 0 if there is none."""
        return self._batches[0].since_ns if self._batches else 0

    def put(self, batch: Unopened) -> None:
        self._batches.append(batch)
        self.count += batch.count

    def take_run(self, most: int, content_type: str) -> RunPart | None:
        """Take the oldest batch, up to `most` messages, if it is of a run of this content type."""
        first = self._batches[0] if self._batches else None
        if not isinstance(first, RunPart) or first.content_type != content_type:
            return None
        if first.count > most:
            first, self._batches[0] = first.split(most)
        else:
            self._batches.popleft()
        self.count -= first.count
        return first

    def put_back(self, part: RunPart) -> None:
        """Put the rest of the oldest batch back."""
        self._batches.appendleft(part)
        self.count += part.count

    def take_first(self) -> list[Message]:
        """The messages of the oldest batch, opened."""
        batch = self._batches.popleft()
        self.count -= batch.count
        return batch.open()

    def take(self, most: int) -> list[Unopened]:
        """Take the oldest, up to `most` messages."""
        batches = self._batches
        taken: list[Unopened] = []
        while most and batches:
            batch = batches.popleft()
            if batch.count > most:
                batch, rest = batch.split(most)
                batches.appendleft(rest)
            most -= batch.count
            self.count -= batch.count
            taken.append(batch)
        return taken


class MessageBatch(Sequence[Message]):
    """The result of `batches()` for unopened messages: a sequence that builds them at the first access."""

    __slots__ = ("_count", "_messages", "_unopened")

    def __init__(self, unopened: Sequence[Unopened]) -> None:
        self._unopened = unopened
        self._count = sum([batch.count for batch in unopened])
        self._messages: list[Message] | None = None

    def _open(self) -> list[Message]:
        if self._messages is None:
            self._messages = [message for batch in self._unopened for message in batch.open()]
            self._unopened = ()
        return self._messages

    def payloads(self) -> list[bytes]:
        """The payloads of all messages, without building the messages."""
        if self._messages is not None:
            return [message.payload for message in self._messages]
        return [payload for batch in self._unopened for payload in batch.payloads()]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return iter(self._open())

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._open()[index]

    def __add__(self, other: Sequence[Message]) -> list[Message]:
        return [*self._open(), *other]

    def __radd__(self, other: Sequence[Message]) -> list[Message]:
        return [*other, *self._open()]

    def __eq__(self, other: object) -> bool:
        """Equal to a list of the same messages."""
        if isinstance(other, MessageBatch):
            return self._open() == other._open()
        return self._open() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # unhashable, like a list

    def __repr__(self) -> str:
        return repr(self._open())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as a list."""
        return list, (self._open(),)
