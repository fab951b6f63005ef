"""A broker that remembers what was published, for tests of code that publishes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Batch

from trunkline.brokers.broker import Broker
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import Take
from trunkline.delivery.stream import Stream
from trunkline.message import Message
from trunkline.topic import matches


class RecordingBroker(Broker):
    """Forwards everything to another broker and keeps what was published, in order."""

    name = "recording"

    def __init__(self, inner: Broker) -> None:
        self.inner = inner
        self.features = inner.features
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

    def tap(self, pattern: str, take: Take, *, hears: bool = True) -> Callable[[], None]:
        return self.inner.tap(pattern, take, hears=hears)

    def link(self, pattern: str, topic: str) -> bool:
        return self.inner.link(pattern, topic)

    def unlink(self, pattern: str, topic: str) -> bool:
        return self.inner.unlink(pattern, topic)

    def heard(self, topic: str) -> bool:
        return self.inner.heard(topic)

    def published_by_topic(self) -> dict[str, int]:
        return self.inner.published_by_topic()

    def subscribers(self, topic: str) -> list[str]:
        return self.inner.subscribers(topic)

    async def flush(self) -> None:
        await self.inner.flush()

    async def aclose(self) -> None:
        await self.inner.aclose()
