"""Redis or Valkey as an engine: pub/sub for published messages, Streams for stored ones.

Only `async` methods wait for the server. Commands are sent in a pipeline, and their replies arrive in order.
`consumer.py` reads the entries of a place. `scripts.py` and `place_scripts.py` contain the operations that the server
runs in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from redis.exceptions import RedisError
from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.batches import decode
from trunkline.brokers.engine.batches import entry_of as number_parts
from trunkline.brokers.engine.driver import ConsumerSpec, ConsumerTerms, EngineEvents, Entry, Standing
from trunkline.brokers.engine.replica import DirectoryChanges
from trunkline.brokers.engine.settings import EngineUrl
from trunkline.brokers.redis import open_events, place_scripts, scripts
from trunkline.brokers.redis.address import RedisAddress
from trunkline.brokers.redis.consumer import StreamConsumer, entry_of
from trunkline.brokers.redis.directory_scripts import READ_DIRECTORY, WRITE_DIRECTORY
from trunkline.brokers.redis.durability import Durability
from trunkline.brokers.redis.link import LinkEnded, RedisLink, Reply
from trunkline.brokers.redis.publication import Publication
from trunkline.brokers.redis.refusals import NAME, code_of, of_storing, translate
from trunkline.brokers.redis.session import RedisSession
from trunkline.brokers.redis.subscriptions import Subscriptions
from trunkline.clock import World
from trunkline.errors import HubRefused, NotAllowed, TrunklineError, Unsupported
from trunkline.topic import NEVER_DURABLE, covers, matches

log = logging.getLogger("trunkline.connection")

MAX_BYTES = 64 * 1024 * 1024
"""Redis accepts 512 MiB, but holds several copies of a message in memory."""
SAME_MS = 600_000
"""How far back to search for a batch that may have been stored before the connection ended."""
COPY_MS = 1000
"""How long the server waits for its replicas before it reports how many have the batch."""
PAGE = 200
CLIENT = "trunkline-"
"""The prefix of the names of connections, for CLIENT LIST."""


class RedisDriver:
    name = NAME
    features = frozenset({Feature.GROUPS, Feature.DURABLE, Feature.STORED, Feature.CHANNELS})
    max_bytes = MAX_BYTES
    opens = True
    why = ""

    def __init__(self, where: EngineUrl, world: World) -> None:
        address = RedisAddress(where.address, where.options)
        self.url = address.safe
        self.settings = settings = where.settings
        self.prefix = address.prefix_of(settings.namespace)
        self.session = RedisSession(address, self.prefix, settings.connect_s)
        self.durable: tuple[str, ...] = settings.durable
        self.durable_open: tuple[str, ...] = ()
        self.run = ""
        self.me = ""
        self.events: EngineEvents
        self._world = world
        self._durability = Durability(self.url, known=settings.synced)
        self._subscriptions = Subscriptions(self)
        self._consumers: dict[int, StreamConsumer] = {}
        self._publications: deque[Publication] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._swept_at = 0.0

    def attach(self, events: EngineEvents, me: str) -> None:
        self.events = events
        self.me = me

    @property
    def backlog(self) -> int:
        return 0 if self.session.link is None else self.session.link.backlog

    # The connection

    async def connect(self) -> None:
        await self.session.connect(self._subscriptions.arrived, self._greet)
        self._tick()

    async def _greet(self, link: RedisLink) -> None:
        """Prepare a server that accepts writes."""
        await self._durability.check(link)
        await link.ask("CLIENT", "SETNAME", f"{CLIENT}{self.me}")
        await link.ask("SET", f"{self.prefix}:run", self._world.uuid7(), "NX")
        self.run = (await link.ask("GET", f"{self.prefix}:run")).decode()
        for pattern in self.settings.durable:
            for table in ("stored", "kept"):
                await link.ask("SADD", f"{self.prefix}:{table}", pattern)
        self.durable = _texts(await link.ask("SMEMBERS", f"{self.prefix}:stored"))
        if self.durable:
            self._durability.say()
        channels = [f"{self.prefix}:{each}" for each in ("c", "n", f"n:{self.me}")]
        await self._subscriptions.begin(link, channels)

    async def ended(self) -> str:
        why = await self.session.ended()
        if self.session.link is not None and self.session.link.cut_off:
            why = f"{why}: this process reads too slowly for the client-output-buffer-limit pubsub of the server"
            for subscription in self._subscriptions.open:
                self.events.lost(subscription, 0, "the server ended the connection")
        await self._close()
        return why

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._subscriptions.end()
        self._publications.clear()
        for consumer in self._consumers.values():
            consumer.disconnected()
        await self.session.close()

    async def aclose(self) -> None:
        if self.session.live:
            try:
                async with asyncio.timeout(self.settings.connect_s):
                    await self.sync()
            except (TimeoutError, TrunklineError) as error:
                log.warning("%s did not confirm the last messages: %s", self.url, error)
        await self._close()

    def _tick(self) -> None:
        """Called a few times per lease. Checks the server, reads what may have been missed, and removes old entries."""
        if not self.session.live:
            return
        settings, loop = self.settings, asyncio.get_running_loop()
        pause_s = min(1.0, settings.lease_s / 3)
        self.session.watch(pause_s)
        for consumer in list(self._consumers.values()):
            consumer.tick(loop.time())
        if loop.time() - self._swept_at > settings.lease_s:
            self._swept_at = loop.time()
            self.session.script(self._swept, place_scripts.SWEEP)
            limits = (int(1000 * (settings.max_age_s or 0)), settings.max_bytes or 0, int(1000 * settings.lease_s))
            self.session.script(self._swept, place_scripts.TRIM, *limits)
        self._timer = loop.call_later(pause_s, self._tick)

    def _swept(self, reply: Reply) -> None:
        if isinstance(reply, RedisError):
            log.error("%s: entries that are no longer needed could not be removed: %s", self.url, reply)

    # Publishing

    def publish(self, number: int, topic: str, data: bytes) -> None:
        publication = Publication(number, topic, data)
        self._publications.append(publication)
        self._publish(publication)

    def _publish(self, publication: Publication) -> None:
        publication.attempt += 1
        publication.is_stored = self._stores(publication.topic)
        publication.known = len(self.durable)
        attempt, topic, data = publication.attempt, publication.topic, publication.data

        def done(reply: Reply) -> None:
            if publication.attempt == attempt:
                self._published(publication, reply)

        if publication.is_stored:
            self.session.script(done, scripts.STORE, topic, data, decode(data)[0].name, 0)
        else:
            self.session.script(done, scripts.PUBLISH, publication.known, topic, data)

    def _published(self, publication: Publication, reply: Reply) -> None:
        topic = publication.topic
        if isinstance(reply, Exception):
            if not isinstance(reply, LinkEnded):
                # Batches sent before this one count as sent, the others as lost.
                self.session.lose(f"publishing on {topic} failed: {reply}")
            return
        if isinstance(reply, list) and not publication.is_stored:
            # More topics are stored than were known when the batch was sent, so the server published none of these
            # batches. Send them again, in order.
            self._learn_stored(reply)
            known = publication.known
            for each in self._publications:
                if each.known <= known and not each.is_stored:
                    self._publish(each)
            return
        self._publications.remove(publication)
        if reply == 0:
            self.events.unheard(publication.number)
            if self._subscriptions.wants(topic):
                self.session.lose(f"a message on {topic} reached no subscriber, although this process subscribes to it")
        else:
            self.events.heard(topic)
        self.events.sent(publication.number)

    def _stores(self, topic: str) -> bool:
        return any(matches(pattern, topic) for pattern in self.durable) and not any(
            matches(own, topic) for own in (*NEVER_DURABLE, *self.settings.open)
        )

    def publish_open(
        self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], *, asks: bool
    ) -> None:
        left = len(messages)

        def done(reply: Reply) -> None:
            nonlocal left
            left -= 1
            if isinstance(reply, LinkEnded):
                return
            if isinstance(reply, Exception):
                self.session.lose(f"publishing on {topic} failed: {reply}")
                return
            if not reply:
                self.events.unheard(number)
            if not left:
                self.events.sent(number)

        for payload, headers in messages:
            self.session.call(done, "PUBLISH", topic, open_events.write(payload, headers))

    def store_open(self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], name: str) -> None:
        raise Unsupported(self.name, "durable open topics")

    def store(self, number: int, topic: str, data: bytes, name: str, *, asks: bool) -> None:
        def done(reply: Reply) -> None:
            if isinstance(reply, LinkEnded):
                # The batch is sent again on the next connection.
                return
            if isinstance(reply, Exception):
                if not self.forgot_scripts(reply):
                    self.events.not_stored(number, of_storing(reply, topic))
            elif copies:
                self._await_copies(number, reply[0], copies, served=not asks or reply[1] > 0)
            else:
                self.events.stored(number, reply[0], served=not asks or reply[1] > 0)

        copies = self.settings.replicas - 1
        window_ms = SAME_MS if decode(data)[0].resent else 0
        self.session.script(done, scripts.STORE, topic, data, name, window_ms)

    def _await_copies(self, number: int, entry: int, copies: int, *, served: bool) -> None:
        """Confirm a batch when this many replicas also have it."""

        def done(reply: Reply) -> None:
            if isinstance(reply, LinkEnded):
                return
            if isinstance(reply, Exception) or reply < copies:
                found = f"{reply} of {copies} replicas have it"
                log.warning("%s: a batch was not confirmed (%s) and is sent again", self.url, found)
                self.events.not_stored(number, None)
            else:
                self.events.stored(number, entry, served=served)

        self.session.call(done, "WAIT", copies, COPY_MS)

    def forgot_scripts(self, error: Exception) -> bool:
        """Whether the server no longer has a script.

        If so, the connection is ended, and the next one loads the scripts.
        """
        if code_of(error) != "NOSCRIPT":
            return False
        self.session.lose("the server has forgotten the scripts")
        return True

    def flush(self) -> None:
        # A task of the link writes in the next turn.
        return

    async def sync(self) -> None:
        await self.session.ask("PING")

    # Plain subscriptions

    def subscribe(self, subscription: int, pattern: str, opened: Callable[[Exception | None], None]) -> None:
        def done(error: Exception | None) -> None:
            opened(None if error is None else translate(self.url, error))

        self._subscriptions.add(subscription, pattern, done)

    def unsubscribe(self, subscription: int) -> None:
        self._subscriptions.remove(subscription)

    def noticed(self, channel: str, data: bytes) -> None:
        """Called when a message has arrived on an internal channel of the namespace."""
        if channel.startswith("g:"):
            role, topic = channel[2:], data.decode(errors="replace")
            for consumer in list(self._consumers.values()):
                if consumer.role == role:
                    consumer.woken(topic)
        elif channel == "c":
            self.session.call(self._learn_stored, "SMEMBERS", f"{self.prefix}:stored")
        else:
            self.events.told(data)

    def _learn_stored(self, reply: Reply) -> None:
        if isinstance(reply, list):
            self._durability.say()
            self.durable = _texts(reply)
            self.events.durable_changed()

    # Stored

    async def add_durable(self, pattern: str) -> None:
        if not any(covers(known, pattern) for known in self.durable):
            await self.session.ask("SADD", f"{self.prefix}:stored", pattern)
            await self.session.ask("PUBLISH", f"{self.prefix}:c", "")
            self._learn_stored(await self.session.ask("SMEMBERS", f"{self.prefix}:stored"))

    async def open_consumer(self, spec: ConsumerSpec) -> ConsumerTerms:
        consumer = self._consumers.get(spec.subscription) or StreamConsumer(self, spec)
        terms = await consumer.open()
        self._consumers[spec.subscription] = consumer
        return terms

    async def listen_to(self, role: str) -> None:
        """Return when this process receives the wake-ups of a place."""
        try:
            await self._subscriptions.listen(f"{self.prefix}:g:{role}")
        except LinkEnded as error:
            raise translate(self.url, error) from error

    def has_place(self, role: str, subscription: int) -> bool:
        """Whether another subscription in this process uses a place."""
        return any(
            each.role == role and not each.closed for number, each in self._consumers.items() if number != subscription
        )

    def left(self, subscription: int) -> None:
        """Remove a consumer that has left its place."""
        consumer = self._consumers.pop(subscription, None)
        if consumer is not None and not self.has_place(consumer.role, subscription):
            self._subscriptions.ignore(f"{self.prefix}:g:{consumer.role}")

    async def is_connected(self, owner: str) -> bool:
        """Whether another process is connected to the server. True if the server does not permit the query."""
        try:
            clients = await self.session.ask("CLIENT", "LIST")
        except (HubRefused, NotAllowed) as error:
            log.debug("%s does not list its clients: %s", self.url, error)
            return True
        return f" name={CLIENT}{owner} ".encode() in clients

    def close_consumer(self, subscription: int) -> None:
        if (consumer := self._consumers.get(subscription)) is not None:
            consumer.close()

    def leave_place(self, subscription: int) -> None:
        # A consumer leaves its place itself, when all entries that it holds are settled.
        return

    def pull(self, subscription: int, entries: int, max_bytes: int) -> None:
        if (consumer := self._consumers.get(subscription)) is not None:
            consumer.pull(entries, max_bytes)

    def ack(self, subscription: int, token: str) -> None:
        if (consumer := self._consumers.get(subscription)) is not None:
            consumer.ack(token)

    def touch(self, subscription: int, token: str) -> None:
        if (consumer := self._consumers.get(subscription)) is not None:
            consumer.touch(token)

    def refuse(self, subscription: int, tokens: list[str]) -> None:
        if (consumer := self._consumers.get(subscription)) is not None:
            consumer.refuse(tokens)

    async def give_back(self, role: str, topic: str, data: bytes) -> None:
        await self.session.run(place_scripts.GIVE, role, topic, data)

    async def last(self, topic: str, below: int | None) -> Entry | None:
        # If the second part of the id is missing, Redis uses the highest value.
        high = "+" if below is None else max(0, below - 1)
        found = await self.session.ask("XREVRANGE", f"{self.prefix}:s:{topic}", high, "-", "COUNT", 1)
        return entry_of(topic, found[0][0], found[0][1]) if found else None

    async def forget(self, role: str) -> bool:
        return bool(await self.session.run(place_scripts.CLOSE, role))

    async def places(self) -> list[str]:
        return [each.decode()[2:] for each in await self.session.ask("HVALS", f"{self.prefix}:places")]

    async def standings(self, topic: str, number: int, without: set[str]) -> dict[str, Standing]:
        entry, index = number_parts(number)
        found = await self.session.run(place_scripts.STANDINGS, topic, entry, index)
        named = {role.decode(): Standing[standing.decode()] for role, standing in found}
        return {role: standing for role, standing in named.items() if role not in without}

    # A few keys

    async def keep(self, table: str, key: str, value: bytes) -> None:
        await self.session.run(scripts.KEEP, table, key, value)

    async def discard(self, table: str, key: str) -> None:
        await self.session.run(scripts.KEEP, table, key)

    async def kept(self, table: str, key: str) -> bytes | None:
        found: bytes | None = await self.session.ask("HGET", f"{self.prefix}:k:{table}", key)
        return found

    async def page(self, table: str, after: str) -> tuple[list[tuple[str, bytes]], str]:
        keys, values = await self.session.run(scripts.PAGE, table, after, PAGE)
        found = [(key.decode(), value) for key, value in zip(keys, values, strict=True) if value is not None]
        return found, keys[-1].decode() if len(keys) == PAGE else ""

    # The directory of channels

    async def read_directory(self, after: int) -> DirectoryChanges:
        version, whole, found = await self.session.run(READ_DIRECTORY, after)
        values = {key.decode(): value for key, value in zip(found[::2], found[1::2], strict=True)}
        return DirectoryChanges(version, values, bool(whole))

    async def write_directory(self, key: str, value: bytes | None, version: int) -> int | None:
        words = (key, version, int(value is None), value or b"")
        return await self.session.run(WRITE_DIRECTORY, *words) or None

    # Other processes

    def tell(self, address: str, data: bytes) -> None:
        self.session.call(None, "PUBLISH", f"{self.prefix}:n{f':{address}' if address else ''}", data)


def _texts(found: list[bytes]) -> tuple[str, ...]:
    return tuple(sorted(each.decode() for each in found))
