"""A remote broker: the same interface as the broker in memory, over a connection to another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Batch

from trunkline.brokers.broker import Broker, Feature
from trunkline.brokers.remote.adapter import DeadLetterKeeper
from trunkline.brokers.remote.feed import Feed, InboxFeed, TapFeed
from trunkline.brokers.remote.lane import RemoteLane
from trunkline.brokers.remote.member import MemberFeed
from trunkline.brokers.remote.shared import SharedConnection
from trunkline.clock import World
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import InboxOf, Take
from trunkline.delivery.stream import Stream
from trunkline.message import Message
from trunkline.settings import Settings
from trunkline.topic import validate_pattern, validate_topic


class RemoteStream(Stream):
    feed: Feed

    async def opened(self) -> None:
        """Return when the broker has confirmed the subscription. Raises HubUnavailable if there is no broker."""
        await self.feed.adapter.ready()
        # Several callers may wait for it. If one is cancelled, the others must still be able to wait.
        await asyncio.shield(self.feed.opening)

    def stop(self) -> None:
        if not self.closed:
            super().stop()
            self.feed.stop()


class RemoteBroker(Broker):
    """The common part of all remote brokers. Each adds its adapter, its name and its features."""

    dead_letters: DeadLetterKeeper | None = None

    def __init__(self, shared: SharedConnection, world: World | None = None, settings: Settings | None = None) -> None:
        super().__init__(world, settings)
        self.shared = shared
        shared.users += 1
        self.sequence = shared.numbers
        self.lanes: Mapping[str, RemoteLane] = shared.outbox.lanes
        self.feeds: dict[str, InboxFeed] = {}
        self._taps: list[Feed] = []
        self._links: set[tuple[str, str]] = set()
        self._on_lost: list[Callable[[Batch[Message], Exception], None]] = []
        self._on_unserved: list[Callable[[Message, Batch[str]], None]] = []

    # Publishing

    def lane(self, topic: str) -> RemoteLane:
        self.check_open()
        lane = self.lanes.get(topic)
        return lane if lane is not None else self.shared.outbox.lane(validate_topic(topic))

    async def flush(self) -> None:
        await self.shared.outbox.flush()

    def release_gone(self) -> None:
        self.shared.outbox.release_gone()

    def has_subscribers(self, topic: str) -> bool:
        lane = self.lanes.get(topic)
        return True if lane is None else lane.has_subscribers

    def subscribers(self, topic: str) -> list[str]:
        """The subscribers in this process. If there are none, a placeholder if there are subscribers elsewhere."""
        here = super().subscribers(topic)
        lane = self.lanes.get(topic)
        elsewhere = lane is not None and lane.terms is not None and lane.has_subscribers
        return here or (["somebody elsewhere"] if elsewhere else [])

    def published_by_topic(self) -> dict[str, int]:
        return self.shared.outbox.published()

    def on_lost(self, report: Callable[[Batch[Message], Exception], None]) -> None:
        self._on_lost.append(report)
        self.shared.outbox.on_lost.append(report)

    def on_unserved(self, report: Callable[[Message, Batch[str]], None]) -> None:
        self._on_unserved.append(report)
        self.shared.outbox.on_unserved.append(report)

    # Subscribing

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        self.check_open()
        if delivery.durable:
            self.require(Feature.DURABLE)
        if delivery.reads_stored:
            self.require(Feature.STORED)
        if delivery.group is not None:
            self.require(Feature.GROUPS)
        validate_pattern(pattern)
        inbox, stream = self.served.join(pattern, delivery, self._leave, RemoteStream)
        assert isinstance(stream, RemoteStream)
        member = delivery.group is not None or delivery.durable or delivery.reads_stored
        if member:
            # Other members get some of the messages, and a redelivered message has an old number.
            stream.keep_exact()
        kind = MemberFeed if member else InboxFeed
        feed = stream.feed = kind(self.shared.adapter, self.shared.next_number(), inbox, delivery)
        feed.dead_letters = self.dead_letters
        self.feeds[inbox.name] = feed
        self.shared.add(feed)
        return stream

    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        feed = TapFeed(self.shared.adapter, self.shared.next_number(), validate_pattern(pattern), take, hears)
        self._taps.append(feed)
        self.shared.add(feed)

        def stop() -> None:
            self.shared.remove(feed)

        return stop

    def _leave(self, inbox: Inbox) -> None:
        if inbox.gone:
            return
        feed = self.feeds.pop(inbox.name)
        self.served.part(inbox)
        self.shared.remove(feed)
        self.left(feed)

    def left(self, feed: InboxFeed) -> None:
        """Called when a subscription has ended."""
        return

    def link(self, pattern: str, topic: str) -> bool:
        self.require(Feature.LINKS)
        key = (validate_pattern(pattern), validate_topic(topic))
        if key in self._links:
            return False
        self._links.add(key)
        self.shared.link(pattern, topic)
        return True

    def unlink(self, pattern: str, topic: str) -> bool:
        if (pattern, topic) not in self._links:
            return False
        self._links.remove((pattern, topic))
        self.shared.unlink(pattern, topic)
        return True

    # The end

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for inbox in self.served:
            self._leave(inbox)
        for feed in self._taps:
            self.shared.remove(feed)
        for pattern, topic in self._links:
            self.shared.unlink(pattern, topic)
        await self.before_release()
        await self.shared.release()
        for report in self._on_lost:
            self.shared.outbox.on_lost.remove(report)
        for unserved in self._on_unserved:
            self.shared.outbox.on_unserved.remove(unserved)

    async def before_release(self) -> None:
        """Called before the connection is released, to send what the broker still needs."""
        return
