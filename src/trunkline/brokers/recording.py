"""A broker that remembers what was published, for tests of code that publishes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Sequence as Batch
from types import MappingProxyType
from typing import Any

from trunkline.brokers.broker import Broker, Lane
from trunkline.delivery.options import Delivery
from trunkline.delivery.pending import Failures, Owner, Turn
from trunkline.delivery.route import InboxOf, Take
from trunkline.delivery.stream import Stream
from trunkline.message import Message
from trunkline.topic import matches


class RecordingBroker(Broker):
    """Forwards everything to another broker and keeps what was published, in order, whichever way it went."""

    name = "recording"

    def __init__(self, inner: Broker) -> None:
        self.inner = inner
        self.features = inner.features
        self.here = inner.here
        self.world = inner.world
        self.settings = inner.settings
        self.sequence = inner.sequence
        self.roster = inner.roster
        # No short cuts: what goes there would not be seen here.
        self.finders = inner.finders
        self.routes = {}
        self.published: list[Message] = []

    def published_to(self, pattern: str) -> list[Message]:
        return [message for message in self.published if matches(pattern, message.topic)]

    async def publish(self, batch: Batch[Message]) -> None:
        self.published.extend(batch)
        await self.inner.publish(batch)

    def route(self, topic: str) -> None:
        return None

    def lane(self, topic: str) -> Lane | None:
        lane = self.inner.lane(topic)
        return None if lane is None else _RecordingLane(lane, self.published)

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        return self.inner.subscribe(pattern, delivery)

    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        return self.inner.tap(pattern, take, hears=hears, inbox_of=inbox_of)

    async def aclose(self) -> None:
        await self.inner.aclose()


def _forwarded(name: str) -> Callable[..., Any]:
    def forward(self: RecordingBroker, *args: Any, **options: Any) -> Any:
        return getattr(self.inner, name)(*args, **options)

    return forward


for _name in vars(Broker):
    # Whatever a broker can, the one below does.
    if not _name.startswith("_") and _name not in vars(RecordingBroker) and callable(vars(Broker)[_name]):
        setattr(RecordingBroker, _name, _forwarded(_name))


class _RecordingLane:
    turn: Mapping[str, Turn] = MappingProxyType({})

    def __init__(self, inner: Lane, published: list[Message]) -> None:
        self._inner = inner
        self._published = published
        self.heard = inner.heard
        self.swift = inner.swift

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
