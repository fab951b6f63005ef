"""One connection with its outbox and feeds, shared by every bus of an event loop that uses the same address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from weakref import WeakKeyDictionary

from trunkline.brokers.remote.adapter import (
    Adapter,
    Arrival,
    ArrivedBody,
    DropNotice,
    PublishLimits,
    Rejection,
    TopicTerms,
)
from trunkline.brokers.remote.feed import Feed
from trunkline.brokers.remote.outbox import Outbox
from trunkline.clock import Sequence as Numbers
from trunkline.delivery.inbox import Inbox
from trunkline.errors import HubError, InvalidPayload, Refused
from trunkline.settings import Settings


class SharedConnection:
    """Receives the events of an adapter. `Shared` documents each of these calls."""

    def __init__(self, adapter: Adapter, settings: Settings) -> None:
        self.adapter = adapter
        self.numbers = Numbers()
        """The highest message number known in this process. Only the broker assigns numbers."""
        self.outbox = Outbox(adapter, settings, self.numbers)
        self.users = 0
        self._feeds: dict[int, Feed] = {}
        self._woken: list[Inbox] = []
        """Inboxes of idle workers for which messages have arrived."""
        self._links: dict[tuple[str, str], int] = {}
        self._last_number = 0
        self._home: dict[Hashable, SharedConnection] = {}
        self._key: Hashable = None
        self.topic_changed: Callable[[TopicTerms], None] = self.outbox.topic_changed
        self.give_way: Callable[[], None] = self.outbox.give_way
        self.unserved: Callable[[int], Callable[[Sequence[str]], None]] = self.outbox.unserved
        self.taken: Callable[[Sequence[tuple[int, int, int]], Mapping[int, list[Rejection]]], None] = self.outbox.taken
        self.rejected: Callable[[int, Callable[[], Refused]], None] = self.outbox.rejected
        self.writable: Callable[[], None] = self.outbox.writable
        adapter.attach(self)

    # Feeds

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def add(self, feed: Feed) -> None:
        self._feeds[feed.number] = feed
        feed.woken = self._woken
        feed.open()

    def remove(self, feed: Feed) -> None:
        self._feeds.pop(feed.number, None)
        feed.close()

    @property
    def missed(self) -> int:
        """Messages that never arrived at subscriptions here."""
        return sum(feed.missed for feed in self._feeds.values())

    def deliver(self, head: Arrival, body: ArrivedBody) -> None:
        self.deliver_first(head, body)
        self.arrived()

    def deliver_first(self, head: Arrival, body: ArrivedBody) -> None:
        feed = self._feeds.get(head.subscription)
        if feed is not None:
            feed.take(head, body)

    def arrived(self) -> None:
        woken = self._woken
        while woken:
            inbox = woken.pop(0)
            inbox.eager.run_one(inbox)

    def dropped(self, notice: DropNotice) -> None:
        feed = self._feeds.get(notice.subscription)
        if feed is not None:
            feed.dropped(notice)

    def losing(self, subscription: int, reason: str) -> None:
        feed = self._feeds.get(subscription)
        if feed is not None:
            feed.why_missing = reason

    def unreadable(self, head: Arrival, body: memoryview, error: InvalidPayload) -> None:
        feed = self._feeds.get(head.subscription)
        if feed is not None:
            feed.unreadable(head, body, error)

    def report_now(self, subscription: int) -> None:
        feed = self._feeds.get(subscription)
        if feed is not None:
            feed.report_now()

    # Links: several buses may use the same one, which is removed with the last of them

    def link(self, pattern: str, topic: str) -> None:
        users = self._links.get((pattern, topic), 0)
        self._links[(pattern, topic)] = users + 1
        if not users:
            self.adapter.open()
            self.adapter.link(pattern, topic)

    def unlink(self, pattern: str, topic: str) -> None:
        users = self._links.pop((pattern, topic), 0)
        if users > 1:
            self._links[(pattern, topic)] = users - 1
        elif users:
            self.adapter.unlink(pattern, topic)

    # The connection

    def connected(self, limits: PublishLimits) -> None:
        # Subscriptions first: a client that publishes to its own subscription must receive the message.
        for feed in self._feeds.values():
            feed.open()
        for pattern, topic in self._links:
            self.adapter.link(pattern, topic)
        self.outbox.connected(limits)

    def disconnected(self) -> None:
        self.outbox.disconnected()

    # Sharing

    @classmethod
    def of(cls, key: Hashable, make: Callable[[], Adapter], settings: Settings) -> SharedConnection:
        """The connection of this event loop with this key. Without a running event loop: a new one, for one user."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return cls(make(), settings)
        known = _shared.setdefault(loop, {})
        shared = known.get(key)
        if shared is None:
            shared = known[key] = cls(make(), settings)
            shared._home, shared._key = known, key
        return shared

    async def release(self) -> None:
        """Remove one user. The connection ends with the last one, after the broker has received what was published."""
        self.users -= 1
        try:
            if self.adapter.live:
                await self.outbox.flush()
        except HubError:
            # Publishers that wait for unsent messages get an error below.
            if self.users:
                return
        if not self.users:
            self._home.pop(self._key, None)
            self.outbox.close()
            await self.adapter.aclose()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, SharedConnection]] = WeakKeyDictionary()
