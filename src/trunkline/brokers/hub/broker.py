"""The hub as a broker: the face over connection, outbox and feeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Batch

from msgspec.structs import replace

from trunkline.brokers.broker import UNNUMBERED, Broker, Feature
from trunkline.brokers.hub.connection import Connection
from trunkline.brokers.hub.feed import Feed, InboxFeed, MemberFeed, TapFeed
from trunkline.brokers.hub.outbox import HubLane, Outbox
from trunkline.brokers.hub.settings import LinkSettings
from trunkline.clock import Sequence, World
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import Take
from trunkline.delivery.stream import Stream
from trunkline.errors import HubError, PartlyRefused, StreamClosed
from trunkline.message import Message
from trunkline.settings import Settings
from trunkline.topic import validate_pattern, validate_topic
from trunkline.wire import control
from trunkline.wire.frames import DeliverHead


class HubStream(Stream):
    feed: Feed

    async def opened(self) -> None:
        """Return when the hub has confirmed the subscription; raises HubUnavailable if there is none."""
        await self.feed.connection.ready()
        # Several may wait for it, and one who gives up must not end it for the others.
        await asyncio.shield(self.feed.opening)

    def stop(self) -> None:
        if not self.closed:
            super().stop()
            self.feed.stop()


class Numbers(Sequence):
    """What the hub has numbered, as far as it is known here. It gives no numbers itself."""

    def next(self) -> int:
        return UNNUMBERED


class HubBroker(Broker):
    name = "hub"
    features = frozenset(Feature)
    """What the hub offers, once it has said so; all of it before that."""

    def __init__(
        self,
        url: str,
        world: World | None = None,
        settings: Settings | None = None,
        *,
        client: str = "bus",
        link: LinkSettings | None = None,
    ) -> None:
        super().__init__(world, settings)
        self.url = url
        self.sequence = Numbers()
        self.connection = Connection(url, client, self.world, link or LinkSettings())
        self.outbox = Outbox(self.connection, self.settings, self.sequence)
        self.lanes: Mapping[str, HubLane] = self.outbox.lanes
        self._feeds: dict[int, Feed] = {}
        self._feed_of: dict[str, InboxFeed] = {}
        self._links: set[tuple[str, str]] = set()
        self._numbers = 0
        self._closed = False
        self.connection.deliver = self._deliver
        self.connection.heard[control.Dropped] = self._dropped
        # Subscriptions first: what is published by itself must be seen.
        self.connection.users += [self, self.outbox]

    # Publishing

    async def publish(self, batch: Batch[Message]) -> None:
        if not batch:
            return
        lane = self.lane(batch[0].topic)
        # Numbers are set in place: only the bus may say that nobody else holds them.
        own = batch if batch[0].seq == UNNUMBERED else [replace(message, seq=UNNUMBERED) for message in batch]
        self.outbox.send_turns()
        failures = await lane.put_many(own, alike=False)
        self.outbox.send_turns()
        if failures:
            raise failures[0][1] if len(batch) == 1 else PartlyRefused(failures, len(batch))

    def lane(self, topic: str) -> HubLane:
        if self._closed:
            raise StreamClosed(f"the {self.name} broker")
        lane = self.lanes.get(topic)
        return lane if lane is not None else self.outbox.lane(validate_topic(topic))

    async def flush(self) -> None:
        await self.outbox.flush()

    def heard(self, topic: str) -> bool:
        lane = self.lanes.get(topic)
        return True if lane is None else lane.heard

    # Subscribing

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        if self._closed:
            raise StreamClosed(f"the {self.name} broker")
        if delivery.durable:
            self.require(Feature.DURABLE)
        validate_pattern(pattern)
        inbox, stream = self.roster.join(pattern, delivery, self._leave, HubStream)
        assert isinstance(stream, HubStream)
        self._numbers += 1
        shared = delivery.group is not None or delivery.durable
        if shared:
            # Others get some of it, and what comes again has an old number.
            stream.keep_exact()
        feed = (MemberFeed if shared else InboxFeed)(self.connection, self._numbers, inbox, delivery)
        stream.feed = feed
        self._feed_of[inbox.name] = feed
        self._add(feed)
        return stream

    def tap(self, pattern: str, take: Take, *, hears: bool = True) -> Callable[[], None]:
        self._numbers += 1
        feed = TapFeed(self.connection, self._numbers, validate_pattern(pattern), take, hears)
        self._add(feed)

        def stop() -> None:
            self._remove(feed)

        return stop

    def _add(self, feed: Feed) -> None:
        self._feeds[feed.number] = feed
        feed.open()

    def _remove(self, feed: Feed) -> None:
        self._feeds.pop(feed.number, None)
        feed.close()

    def _leave(self, inbox: Inbox) -> None:
        if inbox.gone:
            return
        feed = self._feed_of.pop(inbox.name)
        self.roster.part(inbox)
        self._remove(feed)

    def link(self, pattern: str, topic: str) -> bool:
        if (pattern, topic) in self._links:
            return False
        validate_pattern(pattern)
        validate_topic(topic)
        self._links.add((pattern, topic))
        self._ask_soon(lambda number: control.Link(id=number, pattern=pattern, topic=topic))
        return True

    def unlink(self, pattern: str, topic: str) -> bool:
        if (pattern, topic) not in self._links:
            return False
        self._links.remove((pattern, topic))
        self._ask_soon(lambda number: control.Unlink(id=number, pattern=pattern, topic=topic))
        return True

    def _ask_soon(self, make: Callable[[int], control.Ask]) -> None:
        if self.connection.welcome is not None:
            answer = self.connection.ask_soon(make)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    # What the hub says

    def _deliver(self, head: DeliverHead, body: memoryview) -> None:
        feed = self._feeds.get(head.subscription)
        if feed is not None:
            feed.take(head, body)

    def _dropped(self, said: control.Dropped) -> None:
        feed = self._feeds.get(said.subscription)
        if feed is not None:
            feed.dropped(said)

    def live(self, welcome: control.Welcome) -> None:
        self.features = frozenset(feature for feature in Feature if feature.value in welcome.features)
        for feed in self._feeds.values():
            feed.open()
        for pattern, topic in self._links:
            self._ask_soon(lambda number, p=pattern, t=topic: control.Link(id=number, pattern=p, topic=t))  # type: ignore[misc]

    def lost(self) -> None:
        for feed in self._feeds.values():
            feed.lost()

    # The end

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for inbox in self.roster:
            self._leave(inbox)
        for feed in list(self._feeds.values()):
            self._remove(feed)
        try:
            if self.connection.welcome is not None:
                await self.outbox.flush()
        except HubError:
            # What could not be sent is told to those who wait for it.
            pass
        self.outbox.close()
        await self.connection.aclose()
