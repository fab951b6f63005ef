"""The uplink: one connection with its outbox and its feeds, shared by every bus of an event loop that goes there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

import msgspec

from trunkline.brokers.hub.connection import Connection
from trunkline.brokers.hub.feed import Feed
from trunkline.brokers.hub.outbox import Outbox
from trunkline.brokers.hub.settings import LinkSettings
from trunkline.clock import Sequence, World
from trunkline.errors import HubError
from trunkline.settings import Settings
from trunkline.wire import control
from trunkline.wire.frames import DeliverHead

Key = tuple[str, LinkSettings, Settings]


class Uplink:
    def __init__(
        self, url: str, client: str, world: World, settings: Settings, link: LinkSettings, numbers: Sequence
    ) -> None:
        self.connection = Connection(url, client, world, link)
        self.numbers = numbers
        self.outbox = Outbox(self.connection, settings, numbers)
        self.users = 0
        self._feeds: dict[int, Feed] = {}
        self._links: dict[tuple[str, str], int] = {}
        self._numbered = 0
        self._home: dict[Key, Uplink] = {}
        self._key: Key = (url, link, settings)
        self.connection.deliver = self._deliver
        self.connection.heard[control.Dropped] = self._dropped
        self.connection.heard[control.Report] = self._report
        # Subscriptions first: whoever publishes to itself must hear it.
        self.connection.users += [self, self.outbox]

    # Feeds

    def number(self) -> int:
        self._numbered += 1
        return self._numbered

    def add(self, feed: Feed) -> None:
        self._feeds[feed.number] = feed
        feed.open()

    def remove(self, feed: Feed) -> None:
        self._feeds.pop(feed.number, None)
        feed.close()

    def _deliver(self, head: DeliverHead, body: memoryview) -> None:
        feed = self._feeds.get(head.subscription)
        if feed is not None:
            feed.take(head, body)

    def _dropped(self, said: control.Dropped) -> None:
        feed = self._feeds.get(said.subscription)
        if feed is not None:
            feed.dropped(said)

    def _report(self, said: control.Report) -> None:
        feed = self._feeds.get(said.subscription)
        if feed is not None:
            feed.report_all()

    # Links: several buses may want the same one, and it goes with the last of them

    def link(self, pattern: str, topic: str) -> None:
        users = self._links.get((pattern, topic), 0)
        self._links[(pattern, topic)] = users + 1
        if not users:
            self._ask_soon(lambda asked: control.Link(id=asked, pattern=pattern, topic=topic))

    def unlink(self, pattern: str, topic: str) -> None:
        users = self._links.pop((pattern, topic), 0)
        if users > 1:
            self._links[(pattern, topic)] = users - 1
        elif users:
            self._ask_soon(lambda asked: control.Unlink(id=asked, pattern=pattern, topic=topic))

    def _ask_soon(self, make: Callable[[int], control.Ask]) -> None:
        self.connection.open()
        if self.connection.live:
            # Whoever asked does not wait; a connection that ends makes it up with the next one.
            self.connection.ask_soon(make).add_done_callback(lambda done: done.cancelled() or done.exception())

    # The connection

    def live(self, welcome: control.Welcome) -> None:
        for feed in self._feeds.values():
            feed.open()
        for pattern, topic in self._links:
            self._ask_link(pattern, topic)

    def _ask_link(self, pattern: str, topic: str) -> None:
        self._ask_soon(lambda asked: control.Link(id=asked, pattern=pattern, topic=topic))

    def lost(self) -> None:
        for feed in self._feeds.values():
            feed.lost()

    def metrics(self) -> LinkMetrics:
        connection, outbox = self.connection, self.outbox
        return LinkMetrics(
            url=connection.url,
            live=connection.live,
            connects=connection.connects,
            last_failure=connection.last_failure,
            published=outbox.taken,
            delivered=connection.delivered,
            lost=outbox.lost_messages,
            missed=sum(feed.missed for feed in self._feeds.values()),
            malformed=connection.malformed,
            bytes_in=connection.bytes_in,
            bytes_out=connection.bytes_out,
            waiting=sum(lane.in_flight for lane in outbox.lanes.values()),
            backlog_bytes=connection.backlog,
        )

    # Sharing

    @classmethod
    def shared(cls, url: str, client: str, world: World, settings: Settings, link: LinkSettings) -> Uplink:
        """The uplink of this event loop to this address; a new one, for one user, if no event loop runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return cls(url, client, world, settings, link, Numbers())
        known = _shared.setdefault(loop, {})
        key = (url, link, settings)
        uplink = known.get(key)
        if uplink is None:
            uplink = known[key] = cls(url, client, world, settings, link, Numbers())
            uplink._home = known
            uplink._key = key
        return uplink

    async def release(self) -> None:
        """One user less. With the last one the connection ends, after what was published is with the hub."""
        self.users -= 1
        try:
            if self.connection.live:
                await self.outbox.flush()
        except HubError:
            # What could not be sent is told to those who wait for it, below.
            if self.users:
                return
        if not self.users:
            self._home.pop(self._key, None)
            self.outbox.close()
            await self.connection.aclose()


class LinkMetrics(msgspec.Struct, frozen=True):
    """A connection, in numbers since it was first opened."""

    url: str
    live: bool
    connects: int
    last_failure: str
    published: int
    """Messages given to the hub."""
    delivered: int
    """Messages the hub has brought."""
    lost: int
    """Published, and the connection ended before the hub had said that it has them."""
    missed: int
    """Published by others for subscriptions here, and never arrived."""
    malformed: int
    """Frames of the hub that could not be read."""
    bytes_in: int
    bytes_out: int
    waiting: int
    """Messages that the hub has not taken yet."""
    backlog_bytes: int


class Numbers(Sequence):
    """What the hub has numbered, as far as it is known here. It gives no numbers itself."""

    def next(self) -> int:
        return -1


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, Uplink]] = WeakKeyDictionary()
