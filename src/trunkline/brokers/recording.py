"""A broker that remembers what was published, for tests of code that publishes."""

from __future__ import annotations

from collections.abc import Awaitable
from collections.abc import Sequence as Batch

from trunkline.brokers.broker import Broker, Lane
from trunkline.brokers.forwarding import ForwardingBroker
from trunkline.delivery.pending import Failures, Owner, RunOwner
from trunkline.message import Message
from trunkline.topic import matches


class RecordingBroker(ForwardingBroker):
    """Forwards everything to another broker and keeps the published messages, in order."""

    name = "recording"
    publish = Broker.publish

    def __init__(self, inner: Broker) -> None:
        super().__init__(inner)
        self.published: list[Message] = []

    def published_to(self, pattern: str) -> list[Message]:
        return [message for message in self.published if matches(pattern, message.topic)]

    def lane(self, topic: str) -> Lane:
        return _RecordingLane(super().lane(topic), self.published)


class _RecordingLane:
    plain = None

    def __init__(self, inner: Lane, published: list[Message]) -> None:
        self._inner = inner
        self._published = published
        self.has_subscribers = inner.has_subscribers
        self.stored = inner.stored
        self.immediate = False
        self.reserve = inner.reserve

    @property
    def unserved(self) -> bool:
        return self._inner.unserved

    def put_now(self, message: Message) -> bool:
        return False

    def put(self, message: Message, *, alike: bool) -> Awaitable[Failures]:
        self._published.append(message)
        return self._inner.put(message, alike=alike)

    def put_many(self, messages: Batch[Message], *, alike: bool) -> Awaitable[Failures]:
        self._published.extend(messages)
        return self._inner.put_many(messages, alike=alike)

    def owned_run(self, sender: str, content_type: str, owner: RunOwner) -> None:
        """None: every message is recorded."""

    def post(self, message: Message, owner: Owner) -> bool:
        posted: bool = self._inner.post(message, owner)  # type: ignore[attr-defined]  # only used on stored lanes
        if posted:
            self._published.append(message)
        return posted
