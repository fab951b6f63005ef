"""A batch: messages of one topic that are sent together, as columns that are decoded only if a rule needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trunkline import columns
from trunkline.delivery.pending import Failures
from trunkline.delivery.shared_body import SharedBody
from trunkline.errors import NotStored, Refused
from trunkline.message import Message
from trunkline.wire.control import Failure
from trunkline.wire.frames import PublishHead

OPEN_BYTES = 300
BatchBody = bytes | SharedBody


class Publisher(Protocol):
    """Learns what became of its batches."""

    def settled(self, batch: Batch) -> None: ...


class Batch:
    """Published at once, by somebody elsewhere. It is settled when it waits nowhere any more."""

    __slots__ = (
        "again",
        "asks",
        "body",
        "count",
        "failures",
        "first",
        "gone",
        "number",
        "on_withdrawn",
        "origin",
        "position",
        "priority",
        "publisher",
        "rank",
        "topic",
        "urgent",
        "waiting",
    )

    def __init__(self, publisher: Publisher | None, head: PublishHead, body: BatchBody, origin: int = 0) -> None:
        self.publisher = publisher
        self.number = head.number
        self.topic = head.topic
        self.count = head.count
        self.priority = head.priority
        self.rank = head.priority
        """Its priority among others that wait: the one its publisher gave it, or that of its channel."""
        self.again = head.again
        self.asks = head.asks
        self.urgent = head.urgent
        self.origin = origin
        self.position = head.position
        self.body = body
        self.first = 0
        """The number of its first message; 0 while it has none."""
        self.waiting = 1
        """In how many places it still waits; one of them is the engine, while it routes the batch."""
        self.failures: list[Failure] = []
        self.gone = False
        """Whether its publisher has withdrawn it."""
        self.on_withdrawn: list[Callable[[], object]] | None = None

    @property
    def size(self) -> int:
        """An upper bound of its memory in bytes, opened or not."""
        return len(self.body) + OPEN_BYTES * self.count

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def done(self) -> None:
        """It waits in one place less."""
        self.waiting -= 1
        if not self.waiting and self.publisher is not None:
            self.publisher.settled(self)

    def fail(self, index: int, code: str, text: str, **details: Any) -> None:
        self.failures.append(Failure(batch=self.number, index=index, code=code, text=text, details=details))

    def open(self) -> list[Message]:
        """Its messages; raises InvalidPayload if the body holds something else."""
        first = self.first
        if isinstance(self.body, SharedBody):
            return [self.body.read(self.topic, first, hand_on=True)[0]]
        return columns.read(self.topic, self.body, range(first, first + self.count) if first else [0] * self.count)

    @property
    def envelope(self) -> bytes:
        """Its body, without a payload that is in shared memory."""
        return self.body.envelope if isinstance(self.body, SharedBody) else self.body

    def take_over(self, resent: Batch) -> None:
        """Its publisher has lost its connection and sent it again: from now on it counts for the new one."""
        self.publisher, self.number, self.urgent = resent.publisher, resent.number, resent.urgent

    # As the owner of pending messages: the engine opened it for subscribers in its process, or for its journal

    def withdraw(self) -> None:
        """Its publisher waits no longer: it is dropped where it still waits."""
        self.gone = True
        callbacks, self.on_withdrawn = self.on_withdrawn, None
        for callback in callbacks or ():
            callback()

    def when_gone(self, callback: Callable[[], object]) -> None:
        if self.on_withdrawn is None:
            self.on_withdrawn = []
        self.on_withdrawn.append(callback)

    def settled(self, messages: Sequence[Message], failures: Failures) -> None:
        """They are with all subscribers, and some may have been refused there."""
        self.first = messages[0].seq
        if failures:
            place = {id(message): index for index, message in enumerate(messages)}
            for message, error in failures:
                self.fail(place.get(id(message), -1), "refused", str(error), error=type(error).__name__)
        self.done()

    def failed(self, messages: Sequence[Message], error: Refused) -> None:
        """They were not stored, and nobody has seen them."""
        self.fail(-1, "not_stored", error.why if isinstance(error, NotStored) else str(error))
        self.done()


class BatchPart:
    """A batch, or a part of one, that waits for one subscriber."""

    __slots__ = ("batch", "body", "count", "first", "why_lost")

    def __init__(self, batch: Batch, first: int, count: int, body: BatchBody, why_lost: str = "") -> None:
        self.batch = batch
        self.first = first
        self.count = count
        self.body = body
        self.why_lost = why_lost
        """Not empty if it is lost: then only the notice of its loss waits for its turn."""

    def lose(self, why: str) -> BatchPart:
        """The notice of its loss."""
        return BatchPart(self.batch, self.first, self.count, b"", why)

    @property
    def priority(self) -> int:
        """Its priority among others that wait."""
        return self.batch.rank

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def position(self) -> int:
        """How many messages its publisher has published on its topic before."""
        return self.batch.position + self.first - self.batch.first

    def split(self, count: int) -> tuple[BatchPart, BatchPart]:
        """The first `count` messages, and the others."""
        # What is in shared memory is one message: there is nothing to split.
        assert isinstance(self.body, bytes)
        messages = columns.read(self.batch.topic, self.body, range(self.first, self.first + self.count))
        return self._part(messages[:count]), self._part(messages[count:])

    def _part(self, messages: list[Message]) -> BatchPart:
        return BatchPart(self.batch, messages[0].seq, len(messages), columns.pack_batch(messages))
