"""A consumer of Redis Streams: reads the entries of a place, acknowledges them, and takes over those of dead consumers.

A place is a consumer group on the stream of each topic that matches, and on a separate queue for entries that were
given back. No command blocks on the server: when an entry is stored, its topic is announced on the channel of each
place that reads it. All topics are also read periodically, in case announcements were lost.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError
from trunkline.brokers.engine.batches import MAX_COUNT, decode, number_of
from trunkline.brokers.engine.driver import ConsumerSpec, ConsumerTerms, Entry
from trunkline.brokers.redis import place_scripts as scripts
from trunkline.brokers.redis.link import LinkEnded, Reply
from trunkline.errors import DuplicateName, InvalidPayload, InvalidSettings

if TYPE_CHECKING:
    from trunkline.brokers.redis.driver import RedisDriver

log = logging.getLogger("trunkline.connection")

QUEUE = ""
"""Used in place of a topic for the queue of a place."""
CLAIMS = 16
"""The most entries taken over at once."""
ALIVE = 2
"""A place that is not durable is kept for this many leases after the last sign of a subscriber."""


class StreamConsumer:
    def __init__(self, driver: RedisDriver, spec: ConsumerSpec) -> None:
        self._driver = driver
        self._spec = spec
        self.role = spec.role or f"{driver.me}.{spec.subscription}"
        """A place without a name is not shared, and is removed with its subscriber."""
        self._kind = "d" if spec.durable else "e"
        self._me = f"{driver.me}.{spec.subscription}"
        self._topics: set[str] = set()
        self._dirty: set[str] = set()
        """Topics that may have new entries."""
        self._wanted = 0
        self._room = 0
        self._reading = False
        self._claiming = False
        self._inherits = False
        self._open = False
        self.closed = False
        self._last_claim = 0.0
        self._last_look = 0.0
        self._held: dict[str, None] = {}
        """The tokens of entries that were handed out and are not settled, as far as known on this connection."""

    # Opening and closing

    async def open(self) -> ConsumerTerms:
        driver, spec = self._driver, self._spec
        if spec.durable and not spec.shared:
            await self._own()
        await driver.listen_to(self.role)
        start, value = _start_of(spec.start)
        state, found, *now = await driver.session.run(
            scripts.OPEN, self.role, self._kind, spec.pattern, start, value, self._alive_ms, self._me
        )
        if state == b"other":
            raise InvalidSettings(
                f"the durable subscription {self.role!r} is on {found.decode()!r}, not on {spec.pattern!r}: "
                f"use another name, or forget the old one with bus.forget_durable({self.role!r})"
            )
        self._topics = {topic.decode() for topic in found} | {QUEUE}
        self._dirty = set(self._topics)
        self._open, self.closed = True, False
        # The place has no other subscriber. The first pull takes over the entries of an earlier run.
        self._inherits = spec.durable and not spec.shared
        return ConsumerTerms(int(now[0]) * 1_000_000_000 + int(now[1]) * 1000)

    @property
    def _alive_ms(self) -> int:
        return max(1, int(ALIVE * 1000 * self._spec.lease_s))

    async def _own(self) -> None:
        """Become the only subscriber of a durable subscription that is not shared. Raises DuplicateName."""
        driver = self._driver
        if driver.has_place(self.role, self._spec.subscription):
            raise DuplicateName("subscriber", self.role)
        words = (self.role, driver.me, self._alive_ms)
        owner = (await driver.session.run(scripts.OWN, *words, "")).decode()
        if owner != driver.me and not await driver.is_connected(owner):
            # The owner died without releasing the place.
            owner = (await driver.session.run(scripts.OWN, *words, owner)).decode()
        if owner != driver.me:
            raise DuplicateName("subscriber", self.role)

    def disconnected(self) -> None:
        self._open = self._reading = self._claiming = False
        self._wanted = 0

    def close(self) -> None:
        """Stop reading.

        The consumer leaves the place when it holds no entries. A place that is not durable is removed with its last
        consumer.
        """
        if self.closed:
            return
        self.closed, self._open = True, False
        self._wanted = 0
        self._left()

    def leave(self) -> None:
        """Leave the place. Called when the consumer is closed and holds no entries."""
        self._driver.session.script(self._settled, scripts.LEAVE, self.role, self._me, self._driver.me)
        self._driver.left(self._spec.subscription)

    # Reading

    def pull(self, entries: int, max_bytes: int) -> None:
        self._wanted, self._room = entries, max_bytes
        if self._inherits:
            self._inherits = False
            self._claim(0)
        self._read()

    def woken(self, topic: str) -> None:
        """Called when an entry was stored on a topic."""
        self._topics.add(topic)
        self._dirty.add(topic)
        self._read()

    def _read(self) -> None:
        if not self._open or self._reading or self._wanted <= 0 or not self._dirty:
            return
        self._reading = True
        topics, self._dirty = sorted(self._dirty), set()
        self._driver.session.script(
            self._have_read, scripts.READ, self.role, self._me, self._wanted, max(1, self._room), *topics
        )

    def _have_read(self, reply: Reply) -> None:
        self._reading = False
        if isinstance(reply, Exception):
            self._failed(reply, "reading")
            self._left()
            return
        found, more, gaps = reply
        self._dirty |= {topic.decode() for topic in more}
        for topic, first, last, entries in gaps:
            self._gap(topic.decode(), first, last, entries)
        entries = [entry_of(topic.decode(), entry_id, fields) for topic, entry_id, fields in found]
        for entry in sorted(entries, key=_place_of):
            self._hand(entry)
        if self._wanted > 0 and self._room <= 0:
            self._end_pull()
        self._read()
        self._left()

    def _hand(self, entry: Entry) -> None:
        self._wanted -= 1
        self._room -= len(entry.data)
        self._held[entry.token] = None
        self._driver.events.entry_arrived(self._spec.subscription, entry)
        if self._wanted == 0:
            self._end_pull()

    def _end_pull(self) -> None:
        if self._wanted >= 0 and not self.closed:
            self._wanted = 0
            self._driver.events.pull_ended(self._spec.subscription)

    def _gap(self, topic: str, first: int, last: Any, entries: int) -> None:
        if first >= 0:
            self._driver.events.trimmed(self._spec.subscription, first, last, entries, entries)
            return
        text = last.decode(errors="replace")
        if "NOGROUP" not in text and "no such key" not in text:
            log.error("%s cannot read %s: %s", self.role, topic or "its queue", text)
            return
        log.error("%s: the stream of %s is gone: it was evicted or deleted", self.role, topic or "its queue")
        stream = self._stream(topic)
        self._driver.session.call(None, "XGROUP", "CREATE", stream, self.role, "0", "MKSTREAM")
        self._dirty.add(topic)

    def _failed(self, error: Exception, what: str) -> None:
        if isinstance(error, LinkEnded):
            return
        if not self._driver.forgot_scripts(error):
            log.error("%s failed for %s: %s", what, self.role, error)

    # Settling

    def _stream(self, topic: str) -> str:
        prefix = self._driver.prefix
        return f"{prefix}:s:{topic}" if topic else f"{prefix}:q:{self.role}"

    def ack(self, token: str) -> None:
        self._held.pop(token, None)
        topic, entry_id = _parts(token)
        stream = self._stream(topic)
        self._driver.session.call(self._settled, "XACK", stream, self.role, entry_id)
        if not topic:
            self._driver.session.call(None, "XDEL", stream, entry_id)
        self._left()

    def touch(self, token: str) -> None:
        topic, entry_id = _parts(token)
        self._driver.session.call(
            self._settled, "XCLAIM", self._stream(topic), self.role, self._me, 0, entry_id, "IDLE", 0, "JUSTID"
        )

    def refuse(self, tokens: list[str]) -> None:
        for token in tokens:
            self._held.pop(token, None)
            topic, entry_id = _parts(token)
            self._driver.session.script(self._settled, scripts.RETURN, self.role, topic, entry_id)
        self._left()

    def _settled(self, reply: Reply) -> None:
        if isinstance(reply, RedisError):
            log.error("%s could not settle an entry: %s", self.role, reply)

    def _left(self) -> None:
        if self.closed and not self._held and not self._reading and not self._claiming:
            self.leave()

    # Entries of dead consumers

    def tick(self, now: float) -> None:
        """Called about three times per lease."""
        if not self._open:
            return
        driver, lease_s = self._driver, self._spec.lease_s
        if now - self._last_claim >= lease_s / 3:
            self._last_claim = now
            if self._kind == "e":
                driver.session.call(None, "SET", f"{driver.prefix}:alive:{self.role}", "1", "PX", self._alive_ms)
            elif not self._spec.shared:
                driver.session.script(None, scripts.OWN, self.role, driver.me, self._alive_ms, "")
            if self._spec.shared:
                self._claim(int(1000 * lease_s))
        if now - self._last_look >= lease_s:
            self._last_look = now
            self._dirty |= self._topics
            self._read()

    def _claim(self, idle_ms: int) -> None:
        if self._claiming or not self._open:
            return
        self._claiming = True
        self._driver.session.script(
            self._claimed, scripts.CLAIM, self.role, self._me, idle_ms, CLAIMS, *sorted(self._topics)
        )

    def _claimed(self, reply: Reply) -> None:
        self._claiming = False
        if isinstance(reply, Exception):
            self._failed(reply, "taking over entries of other members")
            self._left()
            return
        found, gone = reply
        for topic, entry_id in gone:
            number = int(entry_id.partition(b"-")[0])
            log.error("%s: entry %d of %s was removed before it was acknowledged", self.role, number, topic.decode())
            if topic:
                self._driver.events.trimmed(self._spec.subscription, number, number, 1, 1)
        for topic, entry_id, fields, owner in found:
            entry = entry_of(topic.decode(), entry_id, fields)._replace(again=True)
            if entry.token not in self._held:
                log.info("%s takes over entry %d, which %s held", self.role, entry.number, owner.decode())
                self._hand(entry)
        if len(found) >= CLAIMS:
            self._claim(int(1000 * self._spec.lease_s) if self._spec.shared else 0)
        self._left()


def entry_of(topic: str, entry_id: bytes, fields: list[bytes]) -> Entry:
    """An entry from a reply of the server. An entry of a queue has its number and its topic among its fields.

    The data of an entry that another program has added is its fields. Its receiver reports that it cannot be read.
    """
    head, _, tail = entry_id.decode().partition("-")
    token = f"{topic} {head}-{tail}"
    if topic != QUEUE and is_ours(fields):
        return Entry(int(head), topic, fields[5], int(tail) * 1_000_000, token)
    pairs = list(zip(fields[::2], fields[1::2], strict=True))
    foreign = Entry(int(head), topic or "?", b"\n".join(map(b": ".join, pairs)), 0, token, minor=int(tail) % MAX_COUNT)
    if topic != QUEUE:
        return foreign
    values = dict(pairs)
    try:
        number, stored_ns = int(values[b"s"]), int(values[b"m"]) * 1_000_000
        return Entry(number, values[b"t"].decode(), values[b"d"], stored_ns, token, again=True)
    except (KeyError, ValueError):
        return foreign


def is_ours(fields: list[bytes]) -> bool:
    """Whether an entry of a topic has the fields that STORE writes. The scripts check the same."""
    return fields[::2] == [b"p", b"i", b"d", b"b"] and fields[1].isdigit() and fields[7].isdigit()


def _place_of(entry: Entry) -> tuple[bool, int]:
    """The sort key: entries that were given back come first. Entries read together are sorted by number."""
    if not entry.token.startswith(" "):
        return True, entry.number
    try:
        return False, decode(entry.data)[0].first or number_of(entry.number)
    except InvalidPayload:
        # The receiver reports the error.
        return False, number_of(entry.number)


def _parts(token: str) -> tuple[str, str]:
    topic, _, entry_id = token.rpartition(" ")
    return topic, entry_id


def _start_of(start: int | str) -> tuple[str, str | int]:
    if isinstance(start, int):
        return "number", start
    if start in ("end", "beginning", "last"):
        return start, ""
    try:
        moment = datetime.fromisoformat(start)
    except ValueError:
        raise InvalidSettings(f"start={start!r} is neither a place nor a time: write 2026-11-16T10:00:00Z") from None
    return "time", int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
