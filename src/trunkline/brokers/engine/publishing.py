"""Publishing on an engine: the terms of topics, sending batches, and their confirmation."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline.brokers.engine.batches import KnownBatches, encode, number_of
from trunkline.brokers.engine.connection import AGAIN_S, EngineConnection
from trunkline.brokers.engine.driver import EngineDriver
from trunkline.brokers.engine.open_topics import OpenPlace, too_large
from trunkline.brokers.engine.open_topics import encode as encode_open
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.remote.adapter import NEVER_ALONE, Rejection, Shared, TopicTerms
from trunkline.brokers.remote.outbox import SentBatch
from trunkline.clock import World
from trunkline.delivery.pending import Failures
from trunkline.errors import Refused, Unsupported
from trunkline.message import Message
from trunkline.topic import NEVER_DURABLE, REPLY_PREFIX, covers, matches, nearest

if TYPE_CHECKING:
    from trunkline.brokers.engine.directory import EngineDirectory

log = logging.getLogger("trunkline.connection")

ANSWER_S = 10.0
"""How long answers that reached no subscriber are sent again."""
MAX_ANSWERS = 1000
MAX_REMEMBERED = 10_000
MAX_TOPICS = 100_000


class EngineTopic(msgspec.Struct, frozen=True):
    """The properties of a topic that a publisher needs."""

    topic: str
    durable: bool
    heard: bool = True
    channel: str | None = None
    schema: str | None = None
    full: tuple[tuple[str, int], ...] = ()

    @property
    def confirm(self) -> bool:
        return self.durable


class UnheardAnswers(msgspec.Struct):
    """A batch on a reply topic that had no subscriber."""

    topic: str
    data: bytes
    since: float
    """When that was noticed first, by the clock of the event loop."""
    confirmations: int = -1
    """How many confirmations have arrived since it was sent again; -1 if it waits to be sent again."""


class EnginePublishing(EngineConnection):
    def __init__(self, driver: EngineDriver, world: World, settings: EngineSettings) -> None:
        super().__init__(driver, world, settings)
        if settings.open and not driver.opens:
            raise Unsupported(driver.name, "open topics")
        self.max_unsent_bytes = settings.max_unsent_bytes
        self.unheard_messages = 0
        """Messages published on topics without subscribers."""
        self.alone_bytes = NEVER_ALONE
        self.checks_alone = True
        self.names_full = False
        self.origin = world.random.getrandbits(52) + 1
        self.known = KnownBatches()
        self.directory: EngineDirectory | None = None
        self._unconfirmed: deque[SentBatch] = deque()
        """Plain batches that the server has not confirmed."""
        self._stored: dict[int, SentBatch] = {}
        """Batches sent to be stored, and not confirmed."""
        self._too_large: dict[int, dict[int, Refused]] = {}
        """By plain batch on an open topic: messages that are too large for the server."""
        self._unheard_open: dict[int, int] = {}
        """By plain batch on an open topic: how many of its messages may have reached a subscriber."""
        self._opening: dict[int, None] = {}
        """Consumers that are being opened. Batches published meanwhile are held back."""
        self._held_back: list[SentBatch] = []
        self._until_opened: list[asyncio.Future[None]] = []
        self._topics: dict[str, None] = {}
        """Topics whose terms publishers here have requested."""
        self._without_subscribers: set[str] = set()
        """Topics without subscribers when the last batch was published."""
        self._had_subscribers: OrderedDict[str, bool] = OrderedDict()
        """Topics on which a subscriber received a batch."""
        self._answers: dict[int, UnheardAnswers] = {}
        """By number of the batch: answers that reached no subscriber, and are sent again."""
        self._shared: Shared

    def attach(self, shared: Shared) -> None:
        self._shared = shared

    async def inquire(self, topic: str) -> None:
        # A consumer that is being opened may make the topic durable.
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
        self._shared.topic_changed(EngineTopic(topic, durable, topic not in self._without_subscribers, channel, schema))

    def contracts_changed(self, patterns: Sequence[str]) -> None:
        """Update the terms of topics that match: their channels may have a new contract."""
        for topic in list(self._topics):
            if any(matches(pattern, topic) for pattern in patterns):
                self.inquire_soon(topic)

    def is_durable(self, topic: str) -> bool:
        """Whether the engine stores the messages of a topic."""
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
            # A handler that was registered in this process before the publish must receive the message.
            self._held_back.append(batch)
        elif self.is_open(batch.lane.topic):
            self._send_open(batch)
        elif batch.lane.durable:
            self._stored[batch.number] = batch
            name = f"{self.origin:x}-{batch.number}"
            self.driver.store(batch.number, batch.lane.topic, batch.data, name, asks=batch.asks)
        else:
            self._unconfirmed.append(batch)
            self.driver.publish(batch.number, batch.lane.topic, batch.data)

    def is_open(self, topic: str) -> bool:
        """Whether programs without Trunkline read and write this topic."""
        return bool(self.settings.open) and any(matches(pattern, topic) for pattern in self.settings.open)

    def _send_open(self, batch: SentBatch) -> None:
        """Send each message of a batch separately."""
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
        checked = [too_large(topic, payload, headers, self.driver.max_bytes) for payload, headers in messages]
        if refused := {index: error for index, error in enumerate(checked) if error is not None}:
            log.error("%s", next(iter(refused.values())))
            if len(refused) == batch.size:
                self._shared.rejected(batch.number, lambda: refused[0])
                return
            self._too_large[batch.number] = refused
        self._unconfirmed.append(batch)
        fitting = [each for index, each in enumerate(messages) if index not in refused]
        self._unheard_open[batch.number] = len(fitting)
        self.driver.publish_open(batch.number, topic, fitting, asks=batch.asks)

    def flush(self) -> None:
        self.driver.flush()

    def send_now(self, batch: SentBatch) -> None:
        self.send(batch)
        self.driver.flush()

    def withdraw(self, number: int, reason: str) -> None:
        # Publishers never wait for room at a subscriber here.
        return

    async def sync(self) -> int:
        await self.ready()
        await self.driver.sync()
        while self._stored or self._held_back:
            # `driver.sync` does not wait for stored batches. Wait until they are confirmed.
            pending = [batch.pending for batch in self._stored.values()]
            await self.driver.sync()
            if pending == [batch.pending for batch in self._stored.values()]:
                await asyncio.sleep(AGAIN_S / 10)
        return 0

    async def opened(self) -> None:
        """Return when all subscriptions made so far are open or were refused."""
        await self.ready()
        while self._opening:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._until_opened.append(waiter)
            await waiter

    # Confirmation of batches: called by the driver

    def unheard(self, number: int) -> None:
        if number in self._answers:
            self._answer_again(number)
            return
        for batch in self._unconfirmed:
            if batch.number == number:
                topic = batch.lane.topic
                if number in self._unheard_open:
                    self._unheard_open[number] -= 1
                    if self._unheard_open[number]:
                        return
                if batch.asks:
                    self._fail_requests(number, topic)
                if topic.startswith(REPLY_PREFIX):
                    self._answers[number] = UnheardAnswers(topic, batch.data, asyncio.get_running_loop().time())
                    self._answer_again(number)
                    return
                self.unheard_messages += batch.size
                if topic not in self._without_subscribers:
                    before = self._had_subscribers.pop(topic, False) and not topic.startswith("_")
                    level, has = (logging.WARNING, "lost its last") if before else (logging.INFO, "no")
                    log.log(level, "%s has %s subscriber: %s discards what is published", topic, has, self.name)
                    self._without_subscribers.add(topic)
                    self.inquire_soon(topic)
                return

    def _fail_requests(self, number: int, topic: str) -> None:
        """Fail the requests of a batch that nobody can answer, with similar topics that have subscribers."""
        fail = self._shared.unserved(number)

        async def report() -> None:
            found: Iterable[str] = ()
            try:
                found = await self.served_patterns()
            finally:
                fail(nearest(topic, found))

        self.start(report(), f"topics similar to {topic} were not found")

    @abc.abstractmethod
    async def served_patterns(self) -> set[str]:
        """The patterns of all subscribers that are known here, in any process, and of all places."""

    def _answer_again(self, number: int) -> None:
        """Send answers again that reached no subscriber. The requester may be reconnecting to a restarted server."""
        answers = self._answers[number]
        answers.confirmations = -1
        loop = asyncio.get_running_loop()
        if len(self._answers) <= MAX_ANSWERS and loop.time() - answers.since < ANSWER_S:
            loop.call_later(AGAIN_S, self._send_answers, number)
            return
        del self._answers[number]
        self.unheard_messages += 1
        log.info("nobody listens on %s: %s discards the answer", answers.topic, self.name)

    def _send_answers(self, number: int) -> None:
        if self.live:
            answers = self._answers[number]
            answers.confirmations = 0
            self.driver.publish(number, answers.topic, answers.data)
        else:
            self._answer_again(number)

    def _confirm_answers(self) -> None:
        for number, answers in list(self._answers.items()):
            if answers.confirmations >= 0:
                answers.confirmations += 1
                # The first confirmation may be of earlier batches. With the second, the server has received the batch,
                # and has not reported that the topic has no subscribers.
                if answers.confirmations > 1:
                    del self._answers[number]

    def _resume_answers(self) -> None:
        """Called when the connection has ended: it is not known whether the answers arrived."""
        for number, answers in list(self._answers.items()):
            if answers.confirmations >= 0:
                self._answer_again(number)

    def sent(self, number: int) -> None:
        taken: list[tuple[int, int, int]] = []
        refused: dict[int, list[Rejection]] = {}
        unconfirmed = self._unconfirmed
        if self._answers:
            self._confirm_answers()
        while unconfirmed and unconfirmed[0].number <= number:
            batch = unconfirmed.popleft()
            known = self.known.numbered((self.origin, batch.number), batch.size)
            known.position, known.priority = batch.position, batch.priority
            taken.append((batch.number, batch.number, known.local))
            self._unheard_open.pop(batch.number, None)
            if errors := self._too_large.pop(batch.number, None):
                refused[batch.number] = _rejections(errors)
        if taken:
            self._shared.taken(taken, refused)
            self._shared.writable()

    def heard(self, topic: str) -> None:
        if topic not in self._had_subscribers:
            self._had_subscribers[topic] = True
            if len(self._had_subscribers) > MAX_REMEMBERED:
                self._had_subscribers.popitem(last=False)
        if topic in self._without_subscribers:
            self._without_subscribers.discard(topic)
            self.inquire_soon(topic)

    def stored(self, number: int, entry: int, *, served: bool = True) -> None:
        batch = self._stored.pop(number, None)
        if batch is not None:
            if not served:
                self._fail_requests(number, batch.lane.topic)
            first = number_of(entry)
            known = self.known.stored((self.origin, number), batch.size, first, batch.lane.topic)
            known.position, known.priority = batch.position, batch.priority
            self._shared.taken([(number, number, first)], {})
            self._shared.writable()

    def stored_open(self, number: int, refused: Mapping[int, Refused]) -> None:
        batch = self._stored.pop(number, None)
        if batch is not None:
            first = self.known.numbered((self.origin, number), batch.size).local
            self._shared.taken([(number, number, first)], {number: _rejections(refused)} if refused else {})
            self._shared.writable()

    def not_stored(self, number: int, error: Refused | None) -> None:
        batch = self._stored.get(number)
        if batch is None:
            return
        if error is None:
            # The engine has no leader, or no space, at the moment. A waiting publisher gives up after its own timeout.
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
        """Let the engine store the topics of a pattern, unless it does so already."""
        if not any(covers(known, pattern) for known in self.driver.durable):
            await self.driver.add_durable(pattern)


def _rejections(refused: Mapping[int, Refused]) -> list[Rejection]:
    return [Rejection(index, partial(_same, error)) for index, error in refused.items()]


def _same(error: Refused) -> Refused:
    return error
