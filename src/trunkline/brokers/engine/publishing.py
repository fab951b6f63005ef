"""Publishing on an engine: what a topic is, how a batch is sent, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline.brokers.engine.batches import KnownBatches, encode, number_of
from trunkline.brokers.engine.connection import AGAIN_S, EngineConnection
from trunkline.brokers.engine.driver import EngineDriver
from trunkline.brokers.engine.open_topics import OpenPlace
from trunkline.brokers.engine.open_topics import encode as encode_open
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.remote.adapter import NEVER_ALONE, Rejection, Shared, TopicTerms
from trunkline.brokers.remote.outbox import SentBatch
from trunkline.clock import World
from trunkline.delivery.pending import Failures
from trunkline.errors import Refused, Unsupported
from trunkline.message import Message
from trunkline.topic import NEVER_DURABLE, covers, matches, nearest

if TYPE_CHECKING:
    from trunkline.brokers.engine.directory import EngineDirectory

log = logging.getLogger("trunkline.connection")

MAX_HEARD = 10_000
MAX_TOPICS = 100_000


class EngineTopic(msgspec.Struct, frozen=True):
    """What a publisher must know of a topic."""

    topic: str
    durable: bool
    heard: bool = True
    channel: str | None = None
    schema: str | None = None
    full: tuple[tuple[str, int], ...] = ()

    @property
    def confirm(self) -> bool:
        return self.durable


class EnginePublishing(EngineConnection):
    def __init__(self, driver: EngineDriver, world: World, settings: EngineSettings) -> None:
        super().__init__(driver, world, settings)
        if settings.open and not driver.opens:
            raise Unsupported(driver.name, "open topics")
        self.max_unsent_bytes = settings.max_unsent_bytes
        self.unheard_messages = 0
        """Published where nobody listened."""
        self.alone_bytes = NEVER_ALONE
        self.checks_alone = True
        self.names_full = False
        self.origin = world.random.getrandbits(52) + 1
        self.known = KnownBatches()
        self.directory: EngineDirectory | None = None
        self._unconfirmed: deque[SentBatch] = deque()
        """Plain batches that the server may not have yet."""
        self._stored: dict[int, SentBatch] = {}
        """Batches that are to be stored."""
        self._opening: dict[int, None] = {}
        """Consumers that the engine is asked for: what is published meanwhile waits for them."""
        self._held_back: list[SentBatch] = []
        self._until_opened: list[asyncio.Future[None]] = []
        self._topics: dict[str, None] = {}
        """Topics that publishers here have asked about."""
        self._unheard: set[str] = set()
        """Topics where nobody listened to the last batch."""
        self._heard: OrderedDict[str, bool] = OrderedDict()
        """Topics where somebody did."""
        self._shared: Shared

    def attach(self, shared: Shared) -> None:
        self._shared = shared

    async def inquire(self, topic: str) -> None:
        # One that is being opened may be what makes the topic durable.
        await self.opened()
        if self.directory is not None:
            await self.directory.loaded()
        self.inquire_soon(topic)

    def inquire_soon(self, topic: str) -> None:
        self._topics[topic] = None
        if len(self._topics) > MAX_TOPICS:
            del self._topics[next(iter(self._topics))]
        channel, schema = (None, None) if self.directory is None else self.directory.terms(topic)
        durable = self.is_durable(topic)
        self._shared.topic_changed(EngineTopic(topic, durable, topic not in self._unheard, channel, schema))

    def contracts_changed(self, patterns: Sequence[str]) -> None:
        """Channels on these topics may have another contract now."""
        for topic in list(self._topics):
            if any(matches(pattern, topic) for pattern in patterns):
                self.inquire_soon(topic)

    def is_durable(self, topic: str) -> bool:
        """Whether the engine stores what is published there."""
        if any(matches(pattern, topic) for pattern in NEVER_DURABLE):
            return False
        stored = self.driver.durable_open if self.is_open(topic) else self.driver.durable
        return any(matches(pattern, topic) for pattern in stored)

    async def check(self, terms: TopicTerms, messages: Sequence[Message]) -> tuple[list[Message], Failures]:
        return (list(messages), []) if self.directory is None else self.directory.check(terms, messages)

    def encode(self, batch: SentBatch) -> bytes:
        return encode(batch, self.origin)

    def send(self, batch: SentBatch) -> None:
        if self._opening:
            # A handler of this process that was registered before is to get it.
            self._held_back.append(batch)
        elif self.is_open(batch.lane.topic):
            self._send_open(batch)
        elif batch.lane.durable:
            self._stored[batch.number] = batch
            self.driver.store(batch.number, batch.lane.topic, batch.data, f"{self.origin:x}-{batch.number}")
        else:
            self._unconfirmed.append(batch)
            self.driver.publish(batch.number, batch.lane.topic, batch.data)

    def is_open(self, topic: str) -> bool:
        """Whether programs without Trunkline read and write this topic."""
        return bool(self.settings.open) and any(matches(pattern, topic) for pattern in self.settings.open)

    def _send_open(self, batch: SentBatch) -> None:
        """Each message on its own."""
        batch.pending.open()
        key, topic = (self.origin, batch.number), batch.lane.topic
        messages = [
            encode_open(message, OpenPlace(key, batch.size, index), self.settings.open_format)
            for index, message in enumerate(batch.pending.messages)
        ]
        if batch.lane.durable:
            self._stored[batch.number] = batch
            self.driver.store_open(batch.number, topic, messages, f"{self.origin:x}-{batch.number}")
            return
        self._unconfirmed.append(batch)
        for payload, headers in messages:
            self.driver.publish_open(batch.number, topic, payload, headers)

    def flush(self) -> None:
        # The driver sends at once, or at the end of the turn.
        return

    def withdraw(self, number: int, reason: str) -> None:
        # Nobody makes a publisher wait for room here.
        return

    async def sync(self) -> int:
        await self.ready()
        await self.driver.sync()
        while self._stored or self._held_back:
            # Its publishers wait for it, or have given up.
            pending = [batch.pending for batch in self._stored.values()]
            await self.driver.sync()
            if pending == [batch.pending for batch in self._stored.values()]:
                await asyncio.sleep(AGAIN_S / 10)
        return 0

    async def opened(self) -> None:
        """Return when all subscriptions so far are open, or were refused."""
        await self.ready()
        while self._opening:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._until_opened.append(waiter)
            await waiter

    # What becomes of batches: called by the driver

    def unheard(self, number: int) -> None:
        for batch in self._unconfirmed:
            if batch.number == number:
                topic = batch.lane.topic
                if batch.asks:
                    self._shared.unserved(number, nearest(topic, self._heard))
                self.unheard_messages += batch.size
                if topic not in self._unheard:
                    before = self._heard.pop(topic, False) and not topic.startswith("_")
                    level, more = (logging.WARNING, " any more") if before else (logging.INFO, "")
                    log.log(level, "nobody listens on %s%s: %s discards what is published", topic, more, self.name)
                    self._unheard.add(topic)
                    self.inquire_soon(topic)
                return

    def sent(self, number: int) -> None:
        taken: list[tuple[int, int, int]] = []
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0].number <= number:
            batch = unconfirmed.popleft()
            first = self.known.numbered((self.origin, batch.number), batch.size).local
            taken.append((batch.number, batch.number, first))
        if taken:
            self._shared.taken(taken, {})
            self._shared.writable()

    def heard(self, topic: str) -> None:
        if topic not in self._heard:
            self._heard[topic] = True
            if len(self._heard) > MAX_HEARD:
                self._heard.popitem(last=False)
        if topic in self._unheard:
            self._unheard.discard(topic)
            self.inquire_soon(topic)

    def stored(self, number: int, entry: int) -> None:
        batch = self._stored.pop(number, None)
        if batch is not None:
            first = number_of(entry)
            self.known.stored((self.origin, number), batch.size, first, batch.lane.topic)
            self._shared.taken([(number, number, first)], {})
            self._shared.writable()

    def stored_open(self, number: int, refused: Mapping[int, Refused]) -> None:
        batch = self._stored.pop(number, None)
        if batch is not None:
            first = self.known.numbered((self.origin, number), batch.size).local
            rejections = [Rejection(index, partial(_same, error)) for index, error in refused.items()]
            self._shared.taken([(number, number, first)], {number: rejections} if rejections else {})
            self._shared.writable()

    def not_stored(self, number: int, error: Refused | None) -> None:
        batch = self._stored.get(number)
        if batch is None:
            return
        if error is None:
            # No leader, or no space for now: whoever waits gives up after its own timeout.
            asyncio.get_running_loop().call_later(AGAIN_S, self._store_again, batch)
            return
        del self._stored[number]
        self._shared.rejected(number, lambda: error)

    def _store_again(self, batch: SentBatch) -> None:
        if self.live and self._stored.get(batch.number) is batch:
            batch.resent = True
            batch.data = self.encode(batch)
            self.send(batch)

    def durable_changed(self) -> None:
        for topic in list(self._topics):
            self.inquire_soon(topic)

    # Consumers that are being opened

    def _has_opened(self, *subscriptions: int) -> None:
        for number in subscriptions:
            self._opening.pop(number, None)
        if not self._opening:
            held, self._held_back = self._held_back, []
            for batch in held:
                self.send(batch)
            waiting, self._until_opened = self._until_opened, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    async def cover(self, pattern: str) -> None:
        """Have the engine store what matches a pattern."""
        if not any(covers(known, pattern) for known in self.driver.durable):
            await self.driver.add_durable(pattern)


def _same(error: Refused) -> Refused:
    return error
