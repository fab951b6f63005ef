"""A broker that remembers what was published, for tests of code that publishes."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from collections.abc import Sequence as Batch

from trunkline.brokers.broker import Broker, Lane
from trunkline.brokers.forwarding import ForwardingBroker
from trunkline.delivery.pending import Failures, Owner, Turn
from trunkline.message import Message
from trunkline.topic import matches


class RecordingBroker(ForwardingBroker):
    """Forwards everything to another broker and keeps what was published, in order, whichever way it went."""

    name = "recording"

    def __init__(self, inner: Broker) -> None:
        super().__init__(inner)
        self.published: list[Message] = []

    def published_to(self, pattern: str) -> list[Message]:
        return [message for message in self.published if matches(pattern, message.topic)]

    async def publish(self, batch: Batch[Message]) -> None:
        self.published.extend(batch)
        await super().publish(batch)

    def lane(self, topic: str) -> Lane | None:
        lane = super().lane(topic)
        return None if lane is None else _RecordingLane(lane, self.published)


class _RecordingLane:
    def __init__(self, inner: Lane, published: list[Message]) -> None:
        self._inner = inner
        self._published = published
        self.heard = inner.heard
        self.swift = inner.swift
        self.turn: Mapping[str, Turn] = {}

    def put_now(self, message: Message) -> bool:
        taken = self._inner.put_now(message)
        if taken:
            self._published.append(message)
        return taken

    def put(self, message: Message) -> Awaitable[Failures]:
        return self.put_many([message], alike=False)

    def put_many(self, messages: Batch[Message], *, alike: bool) -> Awaitable[Failures]:
        self._published.extend(messages)
        return self._inner.put_many(messages, alike=alike)

    def post(self, message: Message, owner: Owner) -> None:
        self._published.append(message)
        self._inner.post(message, owner)
