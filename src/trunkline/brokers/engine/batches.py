"""A batch as one message of an engine, and the numbers of its messages. Pure.

A batch is a head of fixed size, then the columns of its messages. The engine numbers the entries that it stores: the
number of a message is the number of its entry, shifted, plus its index. Each process assigns its own numbers to
messages that are not stored, in the order of arrival. These are higher than all numbers of stored messages.
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
"""A batch has at most 65,536 messages. A body of 1 MiB has room for fewer."""
MAX_COUNT = 1 << INDEX_BITS
FOREIGN = 1 << 61
"""From here on, numbers are those of data that is not a message."""
LOCAL = 1 << 62
"""Numbers of messages that are not stored begin here."""
RESENT = 1
_HEAD = Struct("<4sBBHIQQQQ")
HEAD_BYTES = _HEAD.size
MAX_KNOWN = 20_000
TRIMMED = "the engine removed it before it was read"
"""The reason given for a dropped message."""

Key = tuple[int, int]
"""The publisher of a batch, and the number of the batch at this publisher."""


class BatchHead(msgspec.Struct, frozen=True):
    origin: int
    """The publisher: a random number of its connection."""
    number: int
    """The number of the batch at its publisher. Together with the origin it identifies the batch for deduplication."""
    position: int
    """How many messages of its priority were published on its topic before this batch."""
    count: int
    priority: int = NORMAL
    resent: bool = False
    """Whether the engine may have received it before."""
    first: int = 0
    """The number of its first message, if it is a part of an entry that was given back; otherwise 0."""

    @property
    def key(self) -> Key:
        return self.origin, self.number

    @property
    def name(self) -> str:
        """The name by which the engine recognises a batch that it has already stored."""
        return f"{self.origin:x}-{self.number}"

    def pack(self) -> bytes:
        flags = RESENT if self.resent else 0
        return _HEAD.pack(
            MAGIC, flags, self.priority, 0, self.count, self.origin, self.number, self.position, self.first
        )


class EngineArrival(msgspec.Struct, frozen=True):
    """A batch, or a part of one, for a subscription."""

    subscription: int
    first: int
    topic: str
    count: int
    origin: int
    position: int
    priority: int
    seqs: list[int] | None = None


class EngineDrop(msgspec.Struct, frozen=True):
    """Messages that were not delivered to a subscription: its inbox was full, or the engine removed them."""

    subscription: int
    topic: str
    count: int
    origin: int
    position: int
    priority: int
    ranges: list[tuple[int, int]]
    reason: str


def encode(batch: SentBatch, origin: int) -> bytes:
    """The bytes to send: the head, then the columns or a single message."""
    if (lone := batch.lone) is not None:
        flags = RESENT if batch.resent else 0
        head = _HEAD.pack(MAGIC, flags, lone.priority, 0, 1, origin, batch.number, batch.position, 0)
        return head + columns.pack_one(lone)
    pending = batch.pending
    run = pending.run
    if run is not None:
        body = columns.pack_run(*pending.columns(run), run.sender, run.content_type, pending.traces(run))
    else:
        body = columns.pack_batch(pending.messages, plain=pending.plain, alike=pending.alike)
    return BatchHead(origin, batch.number, batch.position, batch.size, batch.priority, batch.resent).pack() + body


def encode_part(head: BatchHead, messages: list[Message]) -> bytes:
    """A part of an entry as bytes. Its messages keep their numbers."""
    first = messages[0].seq
    own = msgspec.structs.replace(head, count=len(messages), first=first)
    return own.pack() + columns.pack_batch(messages)


def decode(data: bytes) -> tuple[BatchHead, memoryview]:
    """The head, and the columns after it. Raises InvalidPayload if the data is not a batch."""
    try:
        magic, flags, priority, _, count, origin, number, position, first = _HEAD.unpack_from(data)
    except error:
        raise InvalidPayload("not a batch: it is too short") from None
    if magic != MAGIC or not 0 < count <= MAX_COUNT or priority > 100 or position >= LOCAL or first >= LOCAL:
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

    __slots__ = ("arrived", "count", "key", "local", "places", "position", "priority", "stored", "topic")

    def __init__(self, key: Key, count: int) -> None:
        self.key = key
        self.count = count
        self.local = 0
        """The local number of its first message, if the batch is not stored, or arrived before that was known.
        Otherwise 0."""
        self.stored = 0
        """The number of its first message in the engine's store."""
        self.topic = ""
        """Its topic, if it is stored."""
        self.position = -1
        """How many messages of its priority its publisher had published on its topic before; -1 if not known."""
        self.priority = NORMAL
        self.arrived = 0
        """The subscriptions that have received it, as bits. A set for each batch would cost more than the rest."""
        self.places: dict[int, int] | None = None
        """If its messages arrive one by one: by subscription, the messages that it has received, as bits."""

    def came_before(self, subscription: int, index: int) -> bool:
        """Note that a subscription has received a message. Returns whether it had received it before."""
        if self.places is None:
            self.places = {}
        have = self.places.get(subscription, 0)
        self.places[subscription] = have | 1 << index
        return bool(have >> index & 1)


class KnownBatches:
    """The last batches that this process has published or received. Maps each number of a message to its others."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._most = most
        self._last = LOCAL
        self._batches: OrderedDict[Key, KnownBatch] = OrderedDict()
        self._local: list[tuple[int, KnownBatch]] = []
        """Sorted by number. Forgotten batches are removed from time to time."""
        self._stored: dict[int, KnownBatch] = {}
        """By entry."""

    def __len__(self) -> int:
        return len(self._batches)

    def of(self, key: Key) -> KnownBatch | None:
        return self._batches.get(key)

    def numbered(self, key: Key, count: int) -> KnownBatch:
        """The batch, with local numbers, which are assigned at the first call."""
        known = self._get(key, count)
        if not known.local:
            known.local = self._last + 1
            self._last += count
            self._local.append((known.local, known))
            if len(self._local) > 2 * self._most:
                self._local = [each for each in self._local if each[1].key in self._batches]
        return known

    def stored(self, key: Key, count: int, first: int, topic: str) -> KnownBatch:
        """Note that the engine has stored a batch."""
        known = self._get(key, count)
        known.stored = first
        known.topic = topic
        self._stored[entry_of(first)[0]] = known
        return known

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
        """The batches known here that are stored in these entries."""
        return [each for entry, each in self._stored.items() if first <= entry <= last]

    def numbers(self, number: int) -> set[int]:
        """All numbers of a message in this process, including this one."""
        found = self.find(number)
        if found is None:
            return {number}
        known, index = found
        return {number, *(first + index for first in (known.local, known.stored) if first)}
