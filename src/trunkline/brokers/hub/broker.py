"""The hub as a broker: the same face as the one in memory, over a connection to another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Batch
from typing import Any

from msgspec.structs import replace

from trunkline.brokers.broker import UNNUMBERED, Broker, Feature
from trunkline.brokers.hub.connection import Embedded
from trunkline.brokers.hub.dead_letters import HubDeadLetters
from trunkline.brokers.hub.directory import HubDirectory
from trunkline.brokers.hub.feed import Feed, InboxFeed, TapFeed
from trunkline.brokers.hub.lane import HubLane
from trunkline.brokers.hub.member import MemberFeed
from trunkline.brokers.hub.settings import LinkSettings
from trunkline.brokers.hub.store import HubStore
from trunkline.brokers.hub.uplink import LinkMetrics, Uplink
from trunkline.clock import World
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import InboxOf, Take
from trunkline.delivery.stream import Stream
from trunkline.errors import PartlyRefused
from trunkline.message import Message
from trunkline.settings import Settings
from trunkline.topic import reply_topic, validate_pattern, validate_topic
from trunkline.wire import control


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


class HubBroker(Broker):
    name = "hub"
    directory: HubDirectory
    store: HubStore

    def __init__(
        self,
        url: str,
        world: World | None = None,
        settings: Settings | None = None,
        *,
        client: str = "bus",
        link: LinkSettings | None = None,
        embed: Embedded | None = None,
    ) -> None:
        super().__init__(world, settings)
        self.url = url
        self.uplink = Uplink.shared(url, client, self.world, self.settings, link or LinkSettings())
        self.uplink.users += 1
        self.connection = self.uplink.connection
        self.directory = HubDirectory.of(self.connection)
        if embed is not None:
            self.connection.embedded = embed
        self.sequence = self.uplink.numbers
        self.lanes: Mapping[str, HubLane] = self.uplink.outbox.lanes
        self._feeds: dict[str, InboxFeed] = {}
        self.dead_letters = HubDeadLetters(self.connection, self.roster, self._feeds)
        """The dead letters that the hub keeps."""
        self.store = HubStore(self)
        self._taps: list[Feed] = []
        self._links: set[tuple[str, str]] = set()
        self._told: list[Callable[[Batch[Message], Exception], None]] = []

    @property
    def features(self) -> frozenset[Feature]:  # type: ignore[override]
        """What the hub offers, once it has said so; before that, everything but rules."""
        welcome = self.connection.welcome
        if welcome is None:
            return frozenset(Feature) - {Feature.RIGHTS}
        offered = frozenset(feature for feature in Feature if feature.value in welcome.features)
        # Every hub has a directory; older ones do not say so.
        return offered | {Feature.CHANNELS}

    # Publishing

    async def publish(self, batch: Batch[Message]) -> None:
        if not batch:
            return
        lane = self.lane(batch[0].topic)
        # Numbers are set in place: only the bus may say that nobody else holds them.
        own = batch if batch[0].seq == UNNUMBERED else [replace(message, seq=UNNUMBERED) for message in batch]
        # A batch is of one kind: it travels apart from what was published before and after it.
        self.uplink.outbox.send_topic(lane.topic)
        failures = await lane.put_many(own, alike=False)
        self.uplink.outbox.send_topic(lane.topic)
        if failures:
            raise failures[0][1] if len(batch) == 1 else PartlyRefused(failures, len(batch))

    def lane(self, topic: str) -> HubLane:
        self.check_open()
        lane = self.lanes.get(topic)
        return lane if lane is not None else self.uplink.outbox.lane(validate_topic(topic))

    async def flush(self) -> None:
        await self.uplink.outbox.flush()

    def heard(self, topic: str) -> bool:
        lane = self.lanes.get(topic)
        return True if lane is None else lane.heard

    def subscribers(self, topic: str) -> list[str]:
        """Those of this process; if there are none, whether there are any elsewhere."""
        here = super().subscribers(topic)
        lane = self.lanes.get(topic)
        return here or (["somebody elsewhere"] if lane is not None and lane.info is not None and lane.heard else [])

    def on_lost(self, tell: Callable[[Batch[Message], Exception], None]) -> None:
        self._told.append(tell)
        self.uplink.outbox.on_lost.append(tell)

    # Subscribing

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        self.check_open()
        if delivery.durable:
            self.require(Feature.DURABLE)
        if delivery.reads_stored:
            self.require(Feature.STORED)
        validate_pattern(pattern)
        inbox, stream = self.roster.join(pattern, delivery, self._leave, HubStream)
        assert isinstance(stream, HubStream)
        member = delivery.group is not None or delivery.durable or delivery.reads_stored
        if member:
            # Others get some of it, and what comes again has an old number.
            stream.keep_exact()
        kind = MemberFeed if member else InboxFeed
        feed = stream.feed = kind(self.connection, self.uplink.number(), inbox, delivery)
        feed.dead_letters = self.dead_letters
        self._feeds[inbox.name] = feed
        self.uplink.add(feed)
        return stream

    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        feed = TapFeed(self.connection, self.uplink.number(), validate_pattern(pattern), take, hears)
        self._taps.append(feed)
        self.uplink.add(feed)

        def stop() -> None:
            self.uplink.remove(feed)

        return stop

    def reply_topic(self) -> str:
        secret = self.world.secret()
        topic = reply_topic(secret)
        self.connection.secrets[topic] = secret
        return topic

    def _leave(self, inbox: Inbox) -> None:
        if inbox.gone:
            return
        feed = self._feeds.pop(inbox.name)
        self.roster.part(inbox)
        self.uplink.remove(feed)
        self.dead_letters.left(feed)

    def link(self, pattern: str, topic: str) -> bool:
        key = (validate_pattern(pattern), validate_topic(topic))
        if key in self._links:
            return False
        self._links.add(key)
        self.uplink.link(pattern, topic)
        return True

    def unlink(self, pattern: str, topic: str) -> bool:
        if (pattern, topic) not in self._links:
            return False
        self._links.remove((pattern, topic))
        self.uplink.unlink(pattern, topic)
        return True

    # Watching

    async def ping(self) -> float:
        """Seconds until the hub has answered; raises HubUnavailable if it does not."""
        await self.connection.ready()
        # Not the event loop's clock: that of uvloop counts milliseconds.
        began_ns = self.world.time_ns()
        await self.connection.sync()
        return (self.world.time_ns() - began_ns) / 1e9

    def metrics(self) -> LinkMetrics:
        """How the connection is doing."""
        return self.uplink.metrics()

    async def hub_stats(self) -> dict[str, Any]:
        """How the hub is doing; raises HubUnavailable if it does not answer."""
        answer = await self.connection.ask(lambda asked: control.Stats(id=asked))
        assert isinstance(answer, control.StatsAnswer)
        return answer.stats

    # The end

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for inbox in self.roster:
            self._leave(inbox)
        for feed in self._taps:
            self.uplink.remove(feed)
        for pattern, topic in self._links:
            self.uplink.unlink(pattern, topic)
        await self.dead_letters.aclose()
        await self.uplink.release()
        for tell in self._told:
            self.uplink.outbox.on_lost.remove(tell)
