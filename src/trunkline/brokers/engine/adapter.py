"""The adapter of an engine: implements the interface of remote brokers with a driver.

There is no hub, so numbers, credit and acknowledgements are managed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline import columns
from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.batches import (
    MAX_COUNT,
    TRIMMED,
    EngineArrival,
    EngineDrop,
    decode,
    number_of,
)
from trunkline.brokers.engine.consumer import EngineConsumer, EngineSubscription
from trunkline.brokers.engine.driver import EngineDriver, Entry
from trunkline.brokers.engine.open_topics import OpenPlace
from trunkline.brokers.engine.open_topics import decode as decode_open
from trunkline.brokers.engine.publishing import EnginePublishing
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.remote.adapter import (
    ENDLESS,
    FateRange,
    SubscribeRequest,
    SubscriptionTerms,
)
from trunkline.clock import World
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.errors import InvalidPayload, Unsupported
from trunkline.message import NORMAL
from trunkline.topic import covers, is_wild, matches

if TYPE_CHECKING:
    from trunkline.brokers.engine.peers import Peers

log = logging.getLogger("trunkline.connection")

MAX_WINDOW = 1 << 20


class EngineLimits(msgspec.Struct, frozen=True):
    window: int
    window_bytes: int
    max_frame_bytes: int


class PlainSubscription:
    """A subscription to messages that are published from now on."""

    __slots__ = ("credit_bytes", "number", "pattern", "warned")

    def __init__(self, request: SubscribeRequest) -> None:
        self.number = request.subscription
        self.pattern = request.pattern
        self.credit_bytes: float = float("inf") if request.credit_bytes == ENDLESS else request.credit_bytes
        self.warned = False


class EngineAdapter(EnginePublishing):
    """One connection to an engine, shared by every bus of an event loop that uses the same address."""

    def __init__(self, driver: EngineDriver, world: World, settings: EngineSettings) -> None:
        super().__init__(driver, world, settings)
        self.max_inbox_bytes = settings.max_inbox_bytes
        self.malformed = 0
        self.dropped_messages = 0
        """Engine messages that the client library dropped: a subscriber here was too slow."""
        self.trimmed_entries = 0
        """Entries that the engine removed before a consumer here read them. A lower bound; `trimmed_at_most` is the
        upper one."""
        self.trimmed_at_most = 0
        self.trimmed_patterns: dict[str, str] = {}
        """By subscriber: its pattern. Of the removed entries, only those that match were for it."""
        self.me = f"{self.origin:x}"
        self.on_told: Callable[[bytes], None] = lambda data: None
        """Called with each note from another process."""
        self.peers: Peers | None = None
        self.keep_letter: Callable[[DeadLetter], Coroutine[Any, Any, None]] | None = None
        self.consumers: dict[int, EngineConsumer] = {}
        self._plain: dict[int, PlainSubscription] = {}
        self._subscribing: dict[int, asyncio.Future[None]] = {}
        """Plain subscriptions that the server has not confirmed."""
        self._foreign = 0
        """How many messages of programs without Trunkline have arrived."""
        driver.attach(self, self.me)

    # The connection

    @property
    def keeps_dead_letters(self) -> bool:
        return Feature.STORED in self.driver.features

    def _has_begun(self) -> None:
        self._shared.connected(EngineLimits(MAX_WINDOW, self.max_unsent_bytes, self.driver.max_bytes))
        for consumer in self.consumers.values():
            consumer.connected()

    def _has_ended(self) -> None:
        self._unconfirmed.clear()
        self._too_large.clear()
        self._unheard_open.clear()
        self._stored.clear()
        self._held_back.clear()
        self._has_opened(*self._opening)
        self._end_subscribing()
        self._resume_answers()
        for consumer in self.consumers.values():
            consumer.disconnected()
        self._shared.disconnected()

    def _end_subscribing(self) -> None:
        subscribing, self._subscribing = self._subscribing, {}
        for each in subscribing.values():
            if not each.done():
                each.set_result(None)

    def _close_consumers(self) -> None:
        self._end_subscribing()
        for consumer in list(self.consumers.values()):
            consumer.close()

    # Subscribing

    def subscribe(self, request: SubscribeRequest, done: Callable[[SubscriptionTerms | Exception], None]) -> None:
        if not self.live:
            done(self._unavailable("there is no connection"))
            return
        if request.group is None and not request.durable and request.start == "end":
            self._subscribe(PlainSubscription(request), done)
            return
        if any(covers(each, request.pattern) for each in self.settings.open):
            done(
                Unsupported(self.name, f"durable subscriptions, groups and replay on the open topic {request.pattern}")
            )
            return
        if Feature.STORED not in self.driver.features:
            wanted = Feature.DURABLE if request.durable else Feature.GROUPS if request.group else Feature.STORED
            done(Unsupported(self.name, wanted.value))
            return
        before = self.consumers.get(request.subscription)
        consumer = before or EngineConsumer(self, request)
        self.consumers[request.subscription] = consumer
        number = request.subscription
        self._opening[number] = None

        def opened(terms: SubscriptionTerms | Exception) -> None:
            self._has_opened(number)
            done(terms)

        consumer.open(request, opened)

    def _subscribe(self, plain: PlainSubscription, done: Callable[[SubscriptionTerms | Exception], None]) -> None:
        self._plain[plain.number] = plain
        subscribing = self._subscribing[plain.number] = asyncio.get_running_loop().create_future()

        def opened(error: Exception | None) -> None:
            if not subscribing.done():
                subscribing.set_result(None)
            if self._subscribing.get(plain.number) is subscribing:
                del self._subscribing[plain.number]
            done(EngineSubscription() if error is None else error)

        self.driver.subscribe(plain.number, plain.pattern, opened)

    async def subscribed(self) -> None:
        """Return when the server has all subscriptions made so far, or has refused them."""
        await self.opened()
        while self._subscribing:
            await asyncio.wait(list(self._subscribing.values()))
            # If the connection ended, they are made on the next one.
            await self.ready()

    async def served_patterns(self) -> set[str]:
        found = set() if self.peers is None else await self.peers.patterns()
        return found.union(await self.driver.places()) if Feature.STORED in self.driver.features else found

    def unsubscribe(self, subscription: int, pattern: str) -> None:
        if self._plain.pop(subscription, None) is not None:
            if self.live:
                self.driver.unsubscribe(subscription)
        elif (consumer := self.consumers.pop(subscription, None)) is not None:
            consumer.close()

    def stop(self, subscription: int) -> None:
        if (consumer := self.consumers.get(subscription)) is not None:
            consumer.stop()

    def credit(self, subscription: int, messages: int, size: int) -> None:
        if (plain := self._plain.get(subscription)) is not None:
            plain.credit_bytes += size
        elif (consumer := self.consumers.get(subscription)) is not None:
            consumer.grant(messages, size)

    def acknowledge(self, subscription: int, ranges: list[tuple[int, int]]) -> None:
        if (consumer := self.consumers.get(subscription)) is not None:
            consumer.settle(ranges)

    def settle(
        self, subscription: int, seq: int, fate: Fate | None, reason: str, letter: DeadLetter | None = None
    ) -> None:
        consumer = self.consumers.get(subscription)
        if consumer is None:
            return
        if fate is None:
            consumer.give_back([seq])
        elif letter is not None and self.keep_letter is not None:
            consumer.settle_after(self._bury(consumer, letter), f"the dead letter {letter.message.id}")
        elif fate is Fate.EXPIRED:
            # Only messages with a ttl expire, so `explain` needs no note.
            consumer.settle([(seq, seq)])
        else:
            consumer.settle_undelivered(seq)

    async def _bury(self, consumer: EngineConsumer, letter: DeadLetter) -> None:
        """Store a dead letter, then settle its message. The entry is not acknowledged before the letter is stored."""
        keep = self.keep_letter
        assert keep is not None
        await self.insist(lambda: keep(letter))
        consumer.settle([(letter.message.seq, letter.message.seq)])

    async def write_notes(self) -> None:
        """Return when the engine has a record of everything that was settled so far."""
        # The acknowledgements of this turn are sent at its end.
        await asyncio.sleep(0)
        for consumer in list(self.consumers.values()):
            await consumer.write_notes()

    def report(
        self, subscription: int, ranges: Sequence[FateRange], letters: Sequence[DeadLetter], *, asked: bool
    ) -> None:
        # Fates are kept in this process, which answers `explain` requests of others.
        return

    def link(self, pattern: str, topic: str) -> None:
        raise Unsupported(self.name, Feature.LINKS.value)

    unlink = link

    # Arrivals: called by the driver

    def arrived(self, subscription: int, topic: str, data: bytes) -> None:
        plain = self._plain.get(subscription)
        if plain is None:
            return
        try:
            head, body = decode(data)
        except InvalidPayload as error:
            self._unreadable(topic, error)
            return
        known = self.known.numbered(head.key, head.count)
        if head.resent and known.arrived >> subscription & 1:
            return
        known.arrived |= 1 << subscription
        known.position, known.priority = head.position, head.priority
        first, count = known.local, head.count
        if plain.credit_bytes <= 0:
            if not plain.warned:
                plain.warned = True
                log.warning(
                    "the inbox of a subscription to %s has reached its limit of bytes: new messages are dropped",
                    plain.pattern,
                )
            ranges = [(first, first + count - 1)]
            reason = f"its inbox is full (more than {self.max_inbox_bytes:,} bytes)"
            self._shared.dropped(
                EngineDrop(subscription, topic, count, head.origin, head.position, head.priority, ranges, reason)
            )
            return
        plain.credit_bytes -= len(body)
        self._shared.deliver(
            EngineArrival(subscription, first, topic, count, head.origin, head.position, head.priority), body
        )

    def open_arrived(self, subscription: int, topic: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Called when a message on an open topic has arrived for a plain subscription."""
        if subscription not in self._plain:
            return
        try:
            message, place = decode_open(topic, payload, headers, self.settings.open_format, self.world)
        except InvalidPayload as error:
            self._unreadable(topic, error)
            return
        if place is None:
            self._foreign += 1
            place = OpenPlace((0, self._foreign), 1, 0)
        known = self.known.numbered(place.key, place.size)
        if known.came_before(subscription, place.place):
            return  # Stored, and sent again because the confirmation was lost.
        first = known.local + place.place
        body = memoryview(columns.pack_batch([message]))
        self._shared.deliver(EngineArrival(subscription, first, topic, 1, 0, 0, message.priority), body)

    def unreadable(self, head: EngineArrival, body: memoryview, error: InvalidPayload) -> None:
        """Called when an entry for a consumer is not a batch of messages."""
        self._shared.unreadable(head, body, error)

    def _unreadable(self, topic: str, error: InvalidPayload) -> None:
        self.malformed += 1
        log.error("a message on %s could not be read: %s", topic, error)

    def entry_arrived(self, subscription: int, entry: Entry) -> None:
        if (consumer := self.consumers.get(subscription)) is not None:
            consumer.arrived(entry)
        else:
            # The consumer was closed a moment ago.
            self.driver.refuse(subscription, [entry.token])

    def deliver(self, head: EngineArrival, body: bytes | memoryview) -> None:
        self._shared.deliver(head, body if isinstance(body, memoryview) else memoryview(body))

    def pull_ended(self, subscription: int) -> None:
        if (consumer := self.consumers.get(subscription)) is not None:
            consumer.pull_ended()

    def lost(self, subscription: int, count: int, why: str) -> None:
        self.dropped_messages += count
        self._shared.losing(subscription, f"its subscriber is too slow: {why}")
        plain = self._plain.get(subscription)
        if plain is not None and not plain.warned:
            plain.warned = True
            log.warning(
                "a subscription to %s is too slow and has lost messages, which are counted: %s", plain.pattern, why
            )

    def told(self, data: bytes) -> None:
        self.on_told(data)

    def trimmed(self, subscription: int, first: int, last: int, at_least: int, at_most: int) -> None:
        consumer = self.consumers.get(subscription)
        if consumer is None:
            return
        who, pattern = consumer.role or consumer.name, consumer.pattern
        here = self.known.stored_between(first, last)
        ours = [each for each in here if matches(pattern, each.topic)]
        all_between = at_least != at_most or at_least == last - first + 1
        if at_least != at_most:
            # The engine does not record the topics of removed entries. Some of them are known here.
            at_most -= len(here) - len(ours)
            at_least = max(at_least, len(ours))
        if not at_most:
            return
        bound = "" if at_least == at_most else f"at least {at_least}, at most {at_most} of the "
        log.error(
            "%s: %sentries %d to %d of %s were removed before they were read: raise max_age_s or max_bytes",
            *(who, bound, first, last, pattern),
        )
        self.trimmed_entries += at_least
        self.trimmed_at_most += at_most
        count = at_least
        if all_between:
            # The number of messages in an entry is known if it was published here. Otherwise the entry counts as one
            # message.
            count += sum(each.count - 1 for each in ours)
            self.trimmed_patterns[who] = pattern
        elif is_wild(pattern):
            # The range contains entries of other topics, which the consumer has read.
            first = last
        ranges = [(number_of(first), number_of(last, MAX_COUNT - 1))]
        self._shared.dropped(EngineDrop(subscription, pattern, count, 0, 0, NORMAL, ranges, TRIMMED))
