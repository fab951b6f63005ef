"""The journal's ledger: collects fates, retries, dead letters and orphans, and writes them with the next commit."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from trunkline.clock import World
from trunkline.delivery.dead_letters import Attempt, DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.requests import Orphan
from trunkline.errors import TrunklineError
from trunkline.journal import attendance, records
from trunkline.journal.settings import JournalSettings, TopicStorage
from trunkline.journal.writer import Database, Job
from trunkline.message import Message
from trunkline.topic import matches, overlaps

log = logging.getLogger("trunkline.journal")

T = TypeVar("T")

FATE = (
    "INSERT INTO fates (subscriber, pattern, fate, first, last, count, reason, at_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
KEEP = "INSERT OR REPLACE INTO retries VALUES (?, ?, ?, ?, ?)"
MAX_KNOWN_TOPICS = 10_000
"""The size of the cache of which topics and patterns are stored: at most 4 MB."""

encode = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode
decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
decode_story = msgspec.msgpack.Decoder(list[Attempt]).decode


def readable(decode: Callable[[bytes], T], data: bytes, what: str) -> T | None:
    """A decoded entry of the journal; None, with a line in the log, if it is damaged."""
    try:
        return decode(data)
    except (msgspec.DecodeError, TrunklineError, UnicodeDecodeError) as error:
        log.error("%s in the journal cannot be read and is skipped: %s", what, error)
        return None


class Entries:
    """The collected entries as part of a transaction: first the fates, then the positions of the cursors."""

    def __init__(
        self, fates: list[tuple[Any, ...]], deeds: list[tuple[str, tuple[Any, ...]]], failed: Callable[[Entries], None]
    ) -> None:
        self.fates = fates
        self.deeds = deeds
        self.size = len(fates) + len(deeds)
        self._failed = failed

    def write(self, database: Database) -> None:
        database.executemany(FATE, self.fates)
        for sql, values in self.deeds:
            database.execute(sql, values)

    def done(self, error: Exception | None) -> None:
        if error is not None:
            self._failed(self)


class Scribe(Protocol):
    """A component that writes more than fates, for example a durable subscription with its cursor."""

    def write_down(self, ledger: JournalLedger) -> None: ...


class DeliveredRange:
    """A range of delivered messages that is not written yet."""

    __slots__ = ("at_ns", "count", "first", "last", "pattern")

    def __init__(self, pattern: str, first: int, last: int, count: int, at_ns: int) -> None:
        self.pattern = pattern
        self.first = first
        self.last = last
        self.count = count
        self.at_ns = at_ns


class JournalLedger(Ledger):
    """Records the fates of messages in the journal."""

    def __init__(self, settings: JournalSettings, world: World, schedule: Callable[[], None]) -> None:
        self._settings = settings
        self._world = world
        self.schedule = schedule
        self._keeps: dict[str, bool] = {}
        self.claimed_lately: deque[int] = deque(maxlen=1000)
        """Orphans that may still be in the table, although they were claimed or dropped."""
        self._only: tuple[str, ...] = ()
        self._spans: dict[str, DeliveredRange] = {}
        self._fates: list[tuple[Any, ...]] = []
        self._deeds: list[tuple[str, tuple[Any, ...]]] = []
        self.retries: set[tuple[str, int]] = set()
        """The content of the table of retries, so that rows are deleted only if they exist."""
        self.scribes: set[Scribe] = set()
        self._failed: deque[Entries] = deque()
        """Entries that could not be written, oldest first. Filled by the writer's thread."""

    # Collecting

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        if not self.keeps_of(inbox.pattern):
            return
        if last < first:
            # Messages are not always taken in order of their numbers: one may be redelivered, or have waited for room.
            first, last = last, first
        span = self._spans.get(inbox.name)
        # Messages in between may be in flight, so only the next number extends the range.
        if span is not None and first == span.last + 1 and span.pattern == inbox.pattern:
            span.last = last
            span.count += count
            span.at_ns = at_ns
            return
        if span is not None:
            self._end(inbox.name, span)
        self._begin(inbox, first, last, count, at_ns)

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        seq = message.seq
        self.done_with(inbox.role, seq)
        if seq < 0 or not self.keeps(message.topic):
            return
        span = self._spans.get(inbox.name)
        # An endpoint also gets messages outside its pattern: such a message has its own row.
        own = matches(inbox.pattern, message.topic)
        if span is not None and own and seq == span.last + 1 and span.pattern == inbox.pattern:
            span.last = seq
            span.count += 1
            span.at_ns = at_ns
            return
        if span is not None:
            self._end(inbox.name, self._spans.pop(inbox.name))
        if own:
            self._begin(inbox, seq, seq, 1, at_ns)
        else:
            self.fate(inbox.name, inbox.pattern, Fate.DELIVERED, seq, seq, 1, "", at_ns)

    def _begin(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        self._spans[inbox.name] = DeliveredRange(inbox.pattern, first, last, count, at_ns)
        self.schedule()

    def _end(self, name: str, span: DeliveredRange) -> None:
        self.fate(name, span.pattern, Fate.DELIVERED, span.first, span.last, span.count, "", span.at_ns)

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        self.done_with(inbox.role, message.seq)
        if message.seq > 0 and self.keeps(message.topic):
            self.fate(inbox.name, inbox.pattern, fate, message.seq, message.seq, 1, reason, at_ns)

    def refused(self, message: Message, who: str, reason: str, at_ns: int) -> None:
        if message.seq > 0 and self.keeps(message.topic):
            self.fate(who, message.topic, Fate.REFUSED, message.seq, message.seq, 1, reason, at_ns)

    def fate(
        self, subscriber: str, pattern: str, fate: Fate, first: int, last: int, count: int, reason: str, at_ns: int
    ) -> None:
        self._fates.append((subscriber, pattern, fate.value, first, last, count, reason, at_ns))
        self.schedule()

    def attends(self, subscriber: str, pattern: str, since: int) -> None:
        self.deed(attendance.COMES, (subscriber, pattern, since))

    def leaves(self, subscriber: str) -> None:
        self.deed(attendance.LEAVES, (subscriber,))

    def retrying(self, inbox: Inbox, message: Message, story: Sequence[Attempt], pause_s: float) -> None:
        self.keep_for(inbox.role, message, story, self._world.time_ns() + int(pause_s * 1e9))

    def keep_for(self, subscriber: str, message: Message, story: Sequence[Attempt], due_ns: int) -> None:
        """Store a message that waits for a subscriber, with its own state."""
        self.retries.add((subscriber, message.seq))
        self.deed(KEEP, (subscriber, message.seq, due_ns, encode(list(story)), encode(message)))

    def passed_on(self, inbox: Inbox, successor: Inbox, message: Message, story: Sequence[Attempt]) -> None:
        if (inbox.role, message.seq) in self.retries:
            self.done_with(inbox.role, message.seq)
            self.keep_for(successor.role, message, story, self._world.time_ns())

    def done_with(self, subscriber: str, seq: int) -> None:
        if self.retries and (subscriber, seq) in self.retries:
            self.retries.discard((subscriber, seq))
            self.deed("DELETE FROM retries WHERE subscriber = ? AND seq = ?", (subscriber, seq))

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        message = letter.message
        self.deed(
            "INSERT OR REPLACE INTO dead_letters VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                letter.subscriber,
                message.seq,
                letter.at_ns,
                message.topic,
                message.id,
                letter.cause.value,
                letter.reason,
                encode(letter),
            ),
        )
        if message.seq > 0 and self.keeps(message.topic):
            self.deed(records.DIED, records.death_of(letter))

    def revived(self, letter: DeadLetter, message: Message) -> None:
        self.removed(letter)
        self.keep_for(letter.subscriber, message, (), self._world.time_ns())

    def removed(self, letter: DeadLetter) -> None:
        self.deed("DELETE FROM dead_letters WHERE subscriber = ? AND seq = ?", (letter.subscriber, letter.message.seq))

    def orphaned(self, orphan: Orphan) -> None:
        message = orphan.message
        self.deed(
            "INSERT OR REPLACE INTO orphans VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                message.seq,
                message.id,
                message.request_id,
                message.topic,
                orphan.why.value,
                self._world.time_ns(),
                encode(message),
            ),
        )

    def claimed(self, orphan: Orphan) -> None:
        self.claimed_lately.append(orphan.message.seq)
        self.deed("DELETE FROM orphans WHERE seq = ?", (orphan.message.seq,))

    def deed(self, sql: str, values: tuple[Any, ...]) -> None:
        self._deeds.append((sql, values))
        self.schedule()

    def keeps(self, topic: str) -> bool:
        known = self._keeps.get(topic)
        if known is None:
            known = self._settings.keeps(topic) is not TopicStorage.NOT
            if self._only:
                known = any(matches(pattern, topic) for pattern in self._only)
            self._remember(topic, known)
        return known

    def keep_only(self, pattern: str) -> None:
        """Store only topics that match. Used with the persistence hook."""
        self._only = (*self._only, pattern)
        self._keeps.clear()

    def keeps_of(self, pattern: str) -> bool:
        """Whether any matching topic is stored."""
        known = self._keeps.get(pattern)
        if known is None:
            kept = self._only or (*self._settings.durable, *self._settings.recorded)
            known = any(overlaps(pattern, each) for each in kept)
            self._remember(pattern, known)
        return known

    def _remember(self, topic: str, known: bool) -> None:
        if len(self._keeps) >= MAX_KNOWN_TOPICS:
            self._keeps.clear()
        self._keeps[topic] = known

    # Writing

    def jobs(self) -> list[Job]:
        """Everything collected since the last call."""
        for name, span in self._spans.items():
            self._end(name, span)
        self._spans.clear()
        for scribe in self.scribes:
            scribe.write_down(self)
        while self._failed:
            earlier = self._failed.pop()
            self._fates[:0] = earlier.fates
            self._deeds[:0] = earlier.deeds
        if not self._fates and not self._deeds:
            return []
        entries = Entries(self._fates, self._deeds, self._failed.append)
        self._fates = []
        self._deeds = []
        return [entries]
