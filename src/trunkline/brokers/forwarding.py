"""A broker that forwards everything to another one. Subclasses change parts of it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Batch
from typing import Any

from trunkline.brokers.broker import Broker, Feature, Lane
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import Take
from trunkline.delivery.stream import Stream
from trunkline.message import Message


class ForwardingBroker(Broker):
    """Forwards all calls. Its `lanes` are empty, so that every publish goes through `publish` or `lane`."""

    name = "forwarding"

    def __init__(self, inner: Broker) -> None:
        super().__init__(inner.world, inner.settings)
        self.inner = inner
        self.here, self.store, self.directory = inner.here, inner.store, inner.directory
        self.foreign_topics = inner.foreign_topics
        self.sequence, self.served, self.finders = inner.sequence, inner.served, inner.finders

    @property
    def features(self) -> frozenset[Feature]:  # type: ignore[override]
        return self.inner.features

    async def begin(self) -> None:
        await self.inner.begin()

    async def publish(self, batch: Batch[Message]) -> None:
        await self.inner.publish(batch)

    def lane(self, topic: str) -> Lane:
        return self.inner.lane(topic)

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        return self.inner.subscribe(pattern, delivery)

    def tap(self, pattern: str, take: Take, **options: Any) -> Callable[[], None]:
        return self.inner.tap(pattern, take, **options)

    def forget_route(self, topic: str) -> None:
        self.inner.forget_route(topic)

    def reply_topic(self) -> str:
        return self.inner.reply_topic()

    def link(self, pattern: str, topic: str) -> bool:
        return self.inner.link(pattern, topic)

    def unlink(self, pattern: str, topic: str) -> bool:
        return self.inner.unlink(pattern, topic)

    async def flush(self) -> None:
        await self.inner.flush()

    def release_gone(self) -> None:
        self.inner.release_gone()

    def on_lost(self, report: Callable[[Batch[Message], Exception], None]) -> None:
        self.inner.on_lost(report)

    def on_unserved(self, report: Callable[[Message, Batch[str]], None]) -> None:
        self.inner.on_unserved(report)

    def nearest(self, topic: str) -> Batch[str]:
        return self.inner.nearest(topic)

    def subscribers(self, topic: str) -> list[str]:
        return self.inner.subscribers(topic)

    def has_subscribers(self, topic: str) -> bool:
        return self.inner.has_subscribers(topic)

    def published_by_topic(self) -> dict[str, int]:
        return self.inner.published_by_topic()

    async def aclose(self) -> None:
        await self.inner.aclose()
