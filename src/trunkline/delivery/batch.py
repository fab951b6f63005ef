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
    """The publisher of batches. It is notified when a batch is settled."""

    def settled(self, batch: Batch) -> None: ...


class Batch:
    """Messages of one topic that were published together.

    It is settled when no part of it waits, for example for room at a subscriber.
    """

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
        """Its priority among waiting batches: that of its publisher, or that of its channel."""
        self.again = head.again
        self.asks = head.asks
        self.urgent = head.urgent
        self.origin = origin
        self.position = head.position
        self.body = body
        self.first = 0
        """The number of its first message; 0 until numbers are assigned."""
        self.waiting = 1
        """The number of places where the batch still waits. One of them is the engine, while it routes the batch."""
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
        """Decrement `waiting`. The batch is settled when it reaches 0."""
        self.waiting -= 1
        if not self.waiting and self.publisher is not None:
            self.publisher.settled(self)

    def fail(self, index: int, code: str, text: str, **details: Any) -> None:
        self.failures.append(Failure(batch=self.number, index=index, code=code, text=text, details=details))

    def open(self) -> list[Message]:
        """Decode its messages; raises InvalidPayload if the body is not valid."""
        first = self.first
        if isinstance(self.body, SharedBody):
            return [self.body.read(self.topic, first, hand_on=True)[0]]
        return columns.read(self.topic, self.body, range(first, first + self.count) if first else [0] * self.count)

    @property
    def envelope(self) -> bytes:
        """Its body, without a payload that is in shared memory."""
        return self.body.envelope if isinstance(self.body, SharedBody) else self.body

    def take_over(self, resent: Batch) -> None:
        """Move the batch to the new connection of its publisher, which reconnected and sent it again."""
        self.publisher, self.number, self.urgent = resent.publisher, resent.number, resent.urgent

    # The methods of `Owner`: the engine opened the batch for subscribers in its process, or for its journal

    def withdraw(self) -> None:
        """Drop the batch where it still waits, because its publisher no longer waits for it."""
        self.gone = True
        callbacks, self.on_withdrawn = self.on_withdrawn, None
        for callback in callbacks or ():
            callback()

    def when_gone(self, callback: Callable[[], object]) -> None:
        if self.on_withdrawn is None:
            self.on_withdrawn = []
        self.on_withdrawn.append(callback)

    def settled(self, messages: Sequence[Message], failures: Failures) -> None:
        """Called when the messages were offered to all subscribers. `failures` are those that a subscriber refused."""
        self.first = messages[0].seq
        if failures:
            place = {id(message): index for index, message in enumerate(messages)}
            for message, error in failures:
                self.fail(place.get(id(message), -1), "refused", str(error), error=type(error).__name__)
        self.done()

    def failed(self, messages: Sequence[Message], error: Refused) -> None:
        """Called when the messages were neither stored nor delivered."""
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
        """Not empty if the messages are lost. This part is then the notice of the loss, at their place in the queue."""

    def lose(self, why: str) -> BatchPart:
        """Replace the messages by a notice of their loss. Returns that notice."""
        return BatchPart(self.batch, self.first, self.count, b"", why)

    @property
    def priority(self) -> int:
        """Its priority among waiting batches."""
        return self.batch.rank

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def position(self) -> int:
        """The number of messages that its publisher had published on the topic before."""
        return self.batch.position + self.first - self.batch.first

    def split(self, count: int) -> tuple[BatchPart, BatchPart]:
        """The first `count` messages, and the others."""
        # A body in shared memory has only one message: it is never split.
        assert isinstance(self.body, bytes)
        messages = columns.read(self.batch.topic, self.body, range(self.first, self.first + self.count))
        return self._part(messages[:count]), self._part(messages[count:])

    def _part(self, messages: list[Message]) -> BatchPart:
        return BatchPart(self.batch, messages[0].seq, len(messages), columns.pack_batch(messages))
