"""A broker that remembers what was published, for tests of code that publishes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from collections.abc import Sequence as Batch
from typing import Any

from trunkline.brokers.broker import Broker, Lane, Terms
from trunkline.delivery.deadletters import DeadLetter
from trunkline.delivery.fates import Outcome
from trunkline.delivery.options import Delivery
from trunkline.delivery.requests import Why
from trunkline.delivery.route import InboxOf, Take
from trunkline.delivery.stream import Stream
from trunkline.message import Message
from trunkline.topic import matches


class RecordingBroker(Broker):
    """Forwards everything to another broker and keeps what was published, in order."""

    name = "recording"

    def __init__(self, inner: Broker) -> None:
        self.inner = inner
        self.features = inner.features
        self.here = inner.here
        self.world = inner.world
        self.settings = inner.settings
        self.sequence = inner.sequence
        self.roster = inner.roster
        self.routes = {}
        self.published: list[Message] = []

    def published_to(self, pattern: str) -> list[Message]:
        return [message for message in self.published if matches(pattern, message.topic)]

    async def publish(self, batch: Batch[Message]) -> None:
        self.published.extend(batch)
        await self.inner.publish(batch)

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        return self.inner.subscribe(pattern, delivery)

    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        return self.inner.tap(pattern, take, hears=hears, inbox_of=inbox_of)

    def reply_topic(self) -> str:
        return self.inner.reply_topic()

    def link(self, pattern: str, topic: str) -> bool:
        return self.inner.link(pattern, topic)

    def unlink(self, pattern: str, topic: str) -> bool:
        return self.inner.unlink(pattern, topic)

    def lane(self, topic: str) -> Lane | None:
        return self.inner.lane(topic)

    async def last(self, topic: str, before: int | None = None) -> Message | None:
        return await self.inner.last(topic, before)

    async def forget(self, name: str) -> bool:
        return await self.inner.forget(name)

    def pause(self) -> None:
        self.inner.pause()

    def find(self, message_id: str) -> Message | None:
        return self.inner.find(message_id)

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        return await self.inner.explain(message_id, known)

    async def attach(self, channel: str, consumer_id: str, schema: Any, metadata: Mapping[str, Any]) -> Terms:
        return await self.inner.attach(channel, consumer_id, schema, metadata)

    async def detach(self, channel: str, consumer_id: str) -> None:
        await self.inner.detach(channel, consumer_id)

    async def recall_dead_letters(self, seen: Container[tuple[str, int]]) -> list[DeadLetter]:
        return await self.inner.recall_dead_letters(seen)

    def recall_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        return self.inner.recall_orphans(max_age_s)

    def heard(self, topic: str) -> bool:
        return self.inner.heard(topic)

    def published_by_topic(self) -> dict[str, int]:
        return self.inner.published_by_topic()

    def subscribers(self, topic: str) -> list[str]:
        return self.inner.subscribers(topic)

    async def flush(self) -> None:
        await self.inner.flush()

    def forget_route(self, topic: str) -> None:
        self.inner.forget_route(topic)

    async def aclose(self) -> None:
        await self.inner.aclose()
