"""Plain subscriptions: the channels and globs that they need, and the delivery of what arrives there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trunkline.brokers.redis import open_events
from trunkline.brokers.redis.link import LinkEnded, RedisLink
from trunkline.brokers.redis.scripts import glob_of
from trunkline.topic import covers, is_wild, matches, overlaps

if TYPE_CHECKING:
    from trunkline.brokers.redis.driver import RedisDriver

OWN = "{"
"""The first character of the channels of every namespace."""
Opened = Callable[[Exception | None], None]


class Subscriptions:
    """The plain subscriptions of a connection.

    A subscription is open when the server has answered a PING that was sent after its SUBSCRIBE, on the same
    connection. Messages published before the PING are not delivered to it. All later ones are.
    """

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver
        self._head = f"{driver.prefix}:"
        self._topics = f"{driver.prefix}:t:"
        self._sources: dict[str, dict[int, str]] = {}
        """By channel or glob: the patterns of its subscriptions, by subscription. The key of a glob begins with a
        space."""
        self._of: dict[int, list[str]] = {}
        """The sources of each subscription."""
        self.open: set[int] = set()
        """Subscriptions that are open."""
        self._own: set[str] = set()
        """Channels that the driver itself uses."""
        self._asked = 0
        self._answers: dict[bytes, Opened] = {}
        self._link: RedisLink | None = None

    async def begin(self, link: RedisLink, channels: list[str]) -> None:
        """Start on a new connection. The shared part makes the subscriptions again."""
        self.end()
        self._link = link
        for channel in channels:
            await self.listen(channel)

    def end(self) -> None:
        self._link = None
        self._sources.clear()
        self._of.clear()
        self.open.clear()
        self._own.clear()
        answers, self._answers = self._answers, {}
        for opened in answers.values():
            opened(LinkEnded("the connection ended"))

    def _ask(self, answered: Opened) -> None:
        assert self._link is not None
        self._asked += 1
        token = str(self._asked).encode()
        self._answers[token] = answered
        self._link.mark(token)

    async def listen(self, channel: str) -> None:
        """Subscribe to a channel of the driver. Returns when its messages will arrive. Raises LinkEnded."""
        if self._link is None:
            raise LinkEnded("there is no connection")
        if channel not in self._own:
            self._own.add(channel)
            self._link.subscribe("SUBSCRIBE", channel)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(error: Exception | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self._ask(answered)
        await done

    def ignore(self, channel: str) -> None:
        if channel in self._own and self._link is not None:
            self._own.remove(channel)
            self._link.subscribe("UNSUBSCRIBE", channel)

    def add(self, subscription: int, pattern: str, opened: Opened) -> None:
        if self._link is None:
            opened(LinkEnded("there is no connection"))
            return
        self._of[subscription] = []
        self._listen(self._link, subscription, self._topics, pattern)
        for each in self._driver.settings.open:
            if overlaps(each, pattern):
                self._listen(self._link, subscription, "", pattern if covers(each, pattern) else each)

        def answered(error: Exception | None) -> None:
            if error is None and subscription in self._of:
                self.open.add(subscription)
            opened(error)

        self._ask(answered)

    def _listen(self, link: RedisLink, subscription: int, head: str, pattern: str) -> None:
        wild = is_wild(pattern)
        source = f" {head}{glob_of(pattern)}" if wild else head + pattern
        if source not in self._sources:
            self._sources[source] = {}
            link.subscribe("PSUBSCRIBE" if wild else "SUBSCRIBE", source.removeprefix(" "))
        self._sources[source][subscription] = pattern
        self._of[subscription].append(source)

    def remove(self, subscription: int) -> None:
        self.open.discard(subscription)
        for source in self._of.pop(subscription, ()):
            self._sources[source].pop(subscription, None)
            if not self._sources[source] and self._link is not None:
                del self._sources[source]
                wild = source.startswith(" ")
                self._link.subscribe("PUNSUBSCRIBE" if wild else "UNSUBSCRIBE", source.removeprefix(" "))

    def wants(self, topic: str) -> bool:
        """Whether an open subscription of this process matches a topic."""
        return any(
            subscription in self.open and matches(pattern, topic)
            for name, source in self._sources.items()
            if name.removeprefix(" ").startswith(self._topics)
            for subscription, pattern in source.items()
        )

    def arrived(self, message: Any) -> None:
        """Called by the link with each message of its second connection."""
        kind = message[0]
        if kind == b"message":
            channel = message[1].decode()
            if channel.startswith(self._head) and not channel.startswith(self._topics):
                self._driver.noticed(channel[len(self._head) :], message[2])
            else:
                self._deliver(self._sources.get(channel), channel, message[2])
        elif kind == b"pmessage":
            channel = message[2].decode(errors="replace")
            self._deliver(self._sources.get(f" {message[1].decode()}"), channel, message[3])
        elif kind == b"pong" and (answered := self._answers.pop(message[1], None)) is not None:
            answered(None)

    def _deliver(self, source: dict[int, str] | None, channel: str, data: bytes) -> None:
        is_open = not channel.startswith(self._topics)
        if source is None or (is_open and channel.startswith(OWN)):
            return
        topic = channel if is_open else channel[len(self._topics) :]
        for subscription, pattern in list(source.items()):
            # A glob may match more than the pattern.
            if subscription not in self.open or (pattern != topic and not matches(pattern, topic)):
                continue
            if is_open:
                self._driver.events.open_arrived(subscription, topic, *open_events.read(data))
            else:
                self._driver.events.arrived(subscription, topic, data)
