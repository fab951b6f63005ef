"""The driver for NATS, with nats-py: batches use core NATS, entries use JetStream."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.driver import ConsumerSpec, ConsumerTerms, EngineEvents, Entry, Standing
from trunkline.brokers.engine.replica import DirectoryChanges
from trunkline.brokers.engine.settings import EngineSettings, EngineUrl
from trunkline.brokers.nats.consumers import NatsConsumers
from trunkline.brokers.nats.directory_stream import DirectoryStream
from trunkline.brokers.nats.jetstream import JetStream
from trunkline.brokers.nats.link import NatsLink
from trunkline.brokers.nats.marks import Marks
from trunkline.brokers.nats.names import NatsNames
from trunkline.brokers.nats.open_store import OpenStore
from trunkline.brokers.nats.refusals import (
    FOR_NOW,
    NAME,
    NO_JETSTREAM,
    JetStreamRefused,
    of_answer,
    of_storing,
    translated,
)
from trunkline.brokers.nats.store import NatsStore
from trunkline.brokers.nats.straight import without_waiting
from trunkline.errors import EngineUnavailable, Unsupported
from trunkline.topic import NEVER_DURABLE, covers, overlaps

log = logging.getLogger("trunkline.connection")

NO_RESPONDERS = "503"
WITH_STORE = frozenset({Feature.GROUPS, Feature.DURABLE, Feature.STORED, Feature.CHANNELS})


class NatsDriver:
    name = NAME
    opens = True

    def __init__(self, where: EngineUrl, client: str) -> None:
        self._settings: EngineSettings = where.settings
        self.features: frozenset[Feature] = frozenset()
        self.max_bytes = 1024 * 1024
        self._names = names = NatsNames(self._settings.namespace)
        self._link = link = NatsLink(where, client, self._is_slow)
        self.url = link.url
        self._publish = link.publish
        self._marks = Marks(link, lambda number: self._events.sent(number))
        self.store_at = NatsStore(link, names, self._settings, lambda: self._events.durable_changed())
        self._open_store = OpenStore(link, names, self.store_at.owners, self._settings)
        self._consumers = NatsConsumers(link, names, self.store_at, lambda: self._events)
        self._directory = DirectoryStream(names, self.store_at, self._settings)
        self._events: EngineEvents
        self._me = ""
        self._topics: dict[int, str] = {}
        """The topics of batches that are being stored."""
        self._unheard: set[int] = set()
        """Batches of requests that are being stored, on topics without connected subscribers."""
        self._subscriptions: dict[int, list[Subscription]] = {}
        self._by_sid: dict[int, int] = {}

    def attach(self, events: EngineEvents, me: str) -> None:
        self._events = self._open_store.events = events
        self._me = self._consumers.owners.me = me

    @property
    def why(self) -> str:
        return self._link.why

    @property
    def backlog(self) -> int:
        return self._link.backlog

    @property
    def durable(self) -> tuple[str, ...]:
        return self.store_at.durable

    @property
    def durable_open(self) -> tuple[str, ...]:
        return self._open_store.durable

    @property
    def run(self) -> str:
        return self.store_at.run

    # The connection

    async def connect(self) -> None:
        await self._link.connect(self._prepare)

    async def _prepare(self, connection: Client) -> None:
        names, url = self._names, self.url
        self.store_at.js = JetStream(connection, url)
        self.max_bytes = self._consumers.max_bytes = connection.max_payload
        self._marks.connected()
        self._directory.connected()
        self._topics.clear()
        self._unheard.clear()
        self._subscriptions.clear()
        self._by_sid.clear()
        listen = self._link.listen
        listen(f"{self._link.inbox}.>", self._answered)
        for subject in ("all", f"to.{self._me}"):
            listen(names.control + subject, self._told)
        listen(f"{names.control}alive.{self._me}", self._consumers.owners.answer)
        with translated(url):
            await connection.subscribe(f"{names.control}durable", cb=self.store_at.durable_changed)
        await self.sync()
        self.features = frozenset()
        # From the INFO message of the server. In a cluster that is starting, JetStream may not answer yet.
        if connection._server_info.get("jetstream"):
            try:
                await self.store_at.prepare()
                await self._open_store.prepare(connection, self.store_at.js)
                self.features = WITH_STORE
            except JetStreamRefused as error:
                if error.number in FOR_NOW:
                    raise EngineUnavailable(NAME, url, f"JetStream is not ready: {error.text}") from error
                if error.number not in NO_JETSTREAM:
                    raise
        if self._settings.durable and not self.features:
            raise Unsupported(NAME, f"{Feature.DURABLE.value} (JetStream is not enabled at {url})")

    async def ended(self) -> str:
        why = await self._link.ended()
        self._forget()
        return why

    def _forget(self) -> None:
        self._marks.ended()
        self._consumers.ended()
        self._open_store.ended()

    async def aclose(self) -> None:
        await self._link.aclose()
        self._forget()

    # Publishing

    def publish(self, number: int, topic: str, data: bytes) -> None:
        self._publish(self._names.prefix + topic, data, f"{self._link.inbox}.p.{number}")
        self._marks.sent(number, len(data))

    def publish_open(
        self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], *, asks: bool
    ) -> None:
        # Other programs take a subject for answers as a request, so only requests have one.
        reply = f"{self._link.inbox}.p.{number}" if asks else ""
        for payload, headers in messages:
            self._publish(topic, payload, reply, headers)
        self._marks.sent(number, sum(len(payload) for payload, _ in messages))

    def store(self, number: int, topic: str, data: bytes, name: str, *, asks: bool) -> None:
        self._topics[number] = topic
        if asks:
            # The stream answers on the topic itself.
            self._unheard.discard(number)
            self._publish(self._names.listens + topic, b"", f"{self._link.inbox}.l.{number}")
        self._publish(self._names.prefix + topic, data, f"{self._link.inbox}.s.{number}", {"Nats-Msg-Id": name})

    def store_open(self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], name: str) -> None:
        self._open_store.store(number, topic, messages, name, self.max_bytes)

    def flush(self) -> None:
        self._link.flush()

    async def sync(self) -> None:
        await self._marks.sync()

    def _answered(self, message: Msg) -> None:
        _, kind, number = message.subject.rsplit(".", 2)
        if kind == "m":
            self._marks.came_back(int(number))
        elif kind == "p":
            if _nobody(message):
                self._events.unheard(int(number))
        elif kind == "l":
            if _nobody(message):
                self._unheard.add(int(number))
        elif kind == "s":
            self._was_stored(int(number), message)
        elif kind == "o":
            self._open_store.answered(number, message)

    def _was_stored(self, number: int, message: Msg) -> None:
        if (message.headers or {}).get("Status"):
            # There is no responder: the stream has no leader at the moment.
            self._events.not_stored(number, None)
            return
        answer = json.loads(message.data)
        if (error := of_answer(answer)) is not None:
            self._events.not_stored(number, of_storing(error, self._topics.pop(number, "?")))
            return
        topic, entry = self._topics.pop(number, ""), int(answer["seq"])
        if number in self._unheard:
            self._unheard.remove(number)
            self._link.start(self._find_place(number, entry, topic))
        else:
            self._events.stored(number, entry)

    async def _find_place(self, number: int, entry: int, topic: str) -> None:
        """Confirm a stored batch of requests whose topic had no connected subscribers."""
        try:
            served = await self._consumers.keeps(topic)
        except (EngineUnavailable, JetStreamRefused) as error:
            log.warning("%s: it is not known whether a durable subscription takes %s: %s", self.url, topic, error)
            served = True
        self._events.stored(number, entry, served=served)

    # Plain subscriptions

    def subscribe(self, subscription: int, pattern: str, opened: Callable[[Exception | None], None]) -> None:
        prefix = self._names.prefix
        cut = len(prefix)

        def arrived(message: Msg) -> None:
            self._events.arrived(subscription, message.subject[cut:], message.data)

        def open_arrived(message: Msg) -> None:
            self._events.open_arrived(subscription, message.subject, message.data, message.headers or {})

        try:
            made = [self._link.listen(prefix + pattern, arrived)]
            if not any(covers(each, pattern) for each in NEVER_DURABLE):
                made.append(self._link.answer_for(self._names.listens + pattern))
            for each in self._settings.open:
                if overlaps(each, pattern):
                    made.append(self._link.listen(pattern if covers(each, pattern) else each, open_arrived))
        except EngineUnavailable as error:
            opened(error)
            return
        self._subscriptions[subscription] = made
        for one in made:
            self._by_sid[one._id] = subscription
        self._link.start(self._confirm(opened))

    async def _confirm(self, opened: Callable[[Exception | None], None]) -> None:
        try:
            await self.sync()
        except EngineUnavailable as error:
            opened(error)
        else:
            opened(None)

    def unsubscribe(self, subscription: int) -> None:
        for made in self._subscriptions.pop(subscription, ()):
            if self._link.live:
                self._by_sid.pop(made._id, None)
                without_waiting(made.unsubscribe())

    def _is_slow(self, sid: int) -> None:
        self._events.lost(self._by_sid.get(sid, 0), 1, "more messages wait for it than the client library keeps")

    # Stored

    async def add_durable(self, pattern: str) -> None:
        await self.store_at.add_durable(pattern)

    async def open_consumer(self, spec: ConsumerSpec) -> ConsumerTerms:
        return await self._consumers.open(spec)

    def close_consumer(self, subscription: int) -> None:
        self._consumers.close(subscription)

    def leave_place(self, subscription: int) -> None:
        self._consumers.leave(subscription)

    def pull(self, subscription: int, entries: int, max_bytes: int) -> None:
        self._consumers.pull(subscription, entries, max_bytes)

    def ack(self, subscription: int, token: str) -> None:
        self._publish(token, b"+ACK")

    def touch(self, subscription: int, token: str) -> None:
        self._publish(token, b"+WPI")

    def refuse(self, subscription: int, tokens: list[str]) -> None:
        # JetStream redelivers the entry that was refused last first.
        for token in reversed(tokens):
            self._publish(token, b"-NAK")

    async def give_back(self, role: str, topic: str, data: bytes) -> None:
        await self.store_at.give_back(role, topic, data)

    async def last(self, topic: str, below: int | None) -> Entry | None:
        return await self.store_at.last(topic, below)

    async def forget(self, role: str) -> bool:
        return await self._consumers.forget(role)

    async def places(self) -> list[str]:
        return await self._consumers.patterns()

    async def standings(self, topic: str, number: int, without: set[str]) -> dict[str, Standing]:
        return await self._consumers.standings(topic, number, without)

    # A few keys

    async def keep(self, table: str, key: str, value: bytes) -> None:
        await self.store_at.keep(table, key, value)

    async def discard(self, table: str, key: str) -> None:
        await self.store_at.discard(table, key)

    async def kept(self, table: str, key: str) -> bytes | None:
        return await self.store_at.kept(table, key)

    async def page(self, table: str, after: str) -> tuple[list[tuple[str, bytes]], str]:
        return await self.store_at.page(table, after)

    # The directory of channels

    async def read_directory(self, after: int) -> DirectoryChanges:
        return await self._directory.read(after)

    async def write_directory(self, key: str, value: bytes | None, version: int) -> int | None:
        return await self._directory.write(key, value, version)

    # Other processes

    def tell(self, address: str, data: bytes) -> None:
        self._publish(f"{self._names.control}to.{address}" if address else f"{self._names.control}all", data)

    def _told(self, message: Msg) -> None:
        self._events.told(message.data)

    async def is_connected(self, address: str) -> bool:
        return await self._consumers.owners.is_connected(address)


def _nobody(message: Msg) -> bool:
    """Whether an answer is that of the server: nobody listens. A stream or another program may answer, too."""
    return (message.headers or {}).get("Status") == NO_RESPONDERS
