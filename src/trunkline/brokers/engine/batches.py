"""A batch as one message of an engine, and the numbers of what is in it. Pure.

A batch is a head of fixed size, then the columns of its messages. The engine numbers the entries that it stores: the
number of a message is that of its entry, shifted, plus its index. What is not stored has no number but the one that
each process gives it as it comes; these are above all others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from struct import Struct, error

import msgspec

from trunkline import columns
from trunkline.brokers.remote.outbox import SentBatch
from trunkline.errors import InvalidPayload
from trunkline.message import NORMAL, Message

MAGIC = b"TLB1"
INDEX_BITS = 16
"""A batch has at most 65,536 messages: a body of a mebibyte has room for fewer."""
MAX_COUNT = 1 << INDEX_BITS
LOCAL = 1 << 62
"""From here on are the numbers of what is not stored."""
RESENT = 1
_HEAD = Struct("<4sBBHIQQQQ")
HEAD_BYTES = _HEAD.size
MAX_KNOWN = 20_000
TRIMMED = "the engine removed it before it was read"
"""Why a message was dropped."""

Key = tuple[int, int]
"""Who published a batch, and its number there."""


class BatchHead(msgspec.Struct, frozen=True):
    origin: int
    """Who published it: a random number of the connection."""
    number: int
    """The number of the batch at its publisher. With the origin it is its name for deduplication."""
    position: int
    """How many messages of its priority were published on its topic before."""
    count: int
    priority: int = NORMAL
    resent: bool = False
    """Whether the engine may have had it before."""
    first: int = 0
    """The number of its first message, if it is a part of an entry that was given back; otherwise 0."""

    @property
    def key(self) -> Key:
        return self.origin, self.number

    @property
    def name(self) -> str:
        """For the engine to recognise a batch that it has already."""
        return f"{self.origin:x}-{self.number}"

    def pack(self) -> bytes:
        flags = RESENT if self.resent else 0
        return _HEAD.pack(
            MAGIC, flags, self.priority, 0, self.count, self.origin, self.number, self.position, self.first
        )


class EngineArrival(msgspec.Struct, frozen=True):
    """A batch, or a part of one, as a subscription gets it."""

    subscription: int
    first: int
    topic: str
    count: int
    origin: int
    position: int
    priority: int
    seqs: list[int] | None = None


class EngineDrop(msgspec.Struct, frozen=True):
    """Messages that a subscription did not get, although they came."""

    subscription: int
    topic: str
    count: int
    origin: int
    position: int
    priority: int
    ranges: list[tuple[int, int]]
    reason: str


def encode(batch: SentBatch, origin: int) -> bytes:
    """What is sent: the head, then columns, or a message alone."""
    pending = batch.pending
    run = pending.run
    if run is not None:
        body = columns.pack_run(*pending.columns(run), run.sender, run.content_type)
        priority = NORMAL
    else:
        body = columns.pack_batch(pending.messages, plain=pending.plain, alike=pending.alike)
        priority = pending.messages[0].priority
    return BatchHead(origin, batch.number, batch.position, batch.size, priority, batch.resent).pack() + body


def encode_part(head: BatchHead, messages: list[Message]) -> bytes:
    """A part of an entry, with the numbers that its messages have."""
    first = messages[0].seq
    own = msgspec.structs.replace(head, count=len(messages), first=first)
    return own.pack() + columns.pack_batch(messages)


def decode(data: bytes) -> tuple[BatchHead, memoryview]:
    """The head, and the columns after it; raises InvalidPayload if it is something else."""
    try:
        magic, flags, priority, _, count, origin, number, position, first = _HEAD.unpack_from(data)
    except error:
        raise InvalidPayload("not a batch: it is too short") from None
    if magic != MAGIC or not 0 < count <= MAX_COUNT or priority > 100:
        raise InvalidPayload("not a batch of Trunkline")
    head = BatchHead(origin, number, position, count, priority, bool(flags & RESENT), first)
    return head, memoryview(data)[HEAD_BYTES:]


def number_of(entry: int, index: int = 0) -> int:
    """The number of a message in an entry of the engine."""
    return (entry << INDEX_BITS) + index


def entry_of(number: int) -> tuple[int, int]:
    """The entry of a stored message, and its index there."""
    return number >> INDEX_BITS, number & (MAX_COUNT - 1)


class KnownBatch:
    """The numbers of a batch in this process."""

    __slots__ = ("arrived", "count", "key", "local", "places", "stored", "topic")

    def __init__(self, key: Key, count: int) -> None:
        self.key = key
        self.count = count
        self.local = 0
        """The number of its first message here, if it is not stored or came before that was known."""
        self.stored = 0
        """The number of its first message in the engine's store."""
        self.topic = ""
        """If it is stored."""
        self.arrived = 0
        """Subscriptions that have it, as bits: a set for each batch would cost more than the rest."""
        self.places: dict[int, int] | None = None
        """If its messages come one by one: those that each subscription has, as bits."""

    def came_before(self, subscription: int, index: int) -> bool:
        """Note that a subscription has a message; whether it had it already."""
        if self.places is None:
            self.places = {}
        have = self.places.get(subscription, 0)
        self.places[subscription] = have | 1 << index
        return bool(have >> index & 1)


class KnownBatches:
    """The last batches that this process has published or received: who asks by one of the numbers gets the others."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._most = most
        self._last = LOCAL
        self._batches: OrderedDict[Key, KnownBatch] = OrderedDict()
        self._local: list[tuple[int, KnownBatch]] = []
        """In order. Those that are forgotten are taken out from time to time."""
        self._stored: dict[int, KnownBatch] = {}
        """By entry."""

    def __len__(self) -> int:
        return len(self._batches)

    def of(self, key: Key) -> KnownBatch | None:
        return self._batches.get(key)

    def numbered(self, key: Key, count: int) -> KnownBatch:
        """A batch that is here, or was sent: it has numbers from now on."""
        known = self._get(key, count)
        if not known.local:
            known.local = self._last + 1
            self._last += count
            self._local.append((known.local, known))
            if len(self._local) > 2 * self._most:
                self._local = [each for each in self._local if each[1].key in self._batches]
        return known

    def stored(self, key: Key, count: int, first: int, topic: str) -> None:
        """The engine has stored a batch."""
        known = self._get(key, count)
        known.stored = first
        known.topic = topic
        self._stored[entry_of(first)[0]] = known

    def _get(self, key: Key, count: int) -> KnownBatch:
        known = self._batches.get(key)
        if known is None:
            known = self._batches[key] = KnownBatch(key, count)
            if len(self._batches) > self._most:
                _, old = self._batches.popitem(last=False)
                self._stored.pop(entry_of(old.stored)[0], None)
        return known

    def find(self, number: int) -> tuple[KnownBatch, int] | None:
        """The batch of a message, and its index there."""
        if number < LOCAL:
            known = self._stored.get(entry_of(number)[0])
            first = 0 if known is None else known.stored
        else:
            place = bisect_right(self._local, number, key=lambda each: each[0]) - 1
            first, known = self._local[place] if place >= 0 else (0, None)
        if known is None or not 0 <= number - first < known.count:
            return None
        return known, number - first

    def stored_between(self, first: int, last: int) -> list[KnownBatch]:
        """Those of these entries that are known here."""
        return [each for entry, each in self._stored.items() if first <= entry <= last]

    def numbers(self, number: int) -> set[int]:
        """All numbers that a message has here, with this one."""
        found = self.find(number)
        if found is None:
            return {number}
        known, index = found
        return {number, *(first + index for first in (known.local, known.stored) if first)}
