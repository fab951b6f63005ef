"""Recent batches, with which the hub can explain messages that are not stored in a journal."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from typing import Any, Final

import msgspec

from trunkline import columns
from trunkline.delivery.batch import BatchBody
from trunkline.delivery.ranges import Ranges
from trunkline.errors import InvalidPayload
from trunkline.message import ELIDED, Message

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_BATCHES: Final = 50_000
EXTRA_BYTES: Final = 200
SMALL_BYTES: Final = 4096
"""Of larger batches only the ids are kept, to bound the memory."""

_columns_of = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_fields_of = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_ids_of = msgspec.msgpack.Decoder(columns.Strings | str).decode


class Remembered(msgspec.Struct, frozen=True, gc=False):
    first: int
    size: int
    topic: str
    body: bytes
    """The whole batch, or, for a large batch, only its encoded ids."""
    whole: bool


class Recent:
    """The last batches, in the order of their numbers, up to MAX_BYTES. Adding one is cheap."""

    def __init__(self) -> None:
        self._batches: deque[Remembered] = deque()
        self._bytes = 0

    def remember(self, first: int, count: int, topic: str, body: BatchBody) -> None:
        batches, size = self._batches, len(body)
        kept: Any = body
        whole = size <= SMALL_BYTES
        if not whole:
            # Payloads in shared memory are large.
            kept = _ids(body if isinstance(body, bytes) else body.envelope)
            size = len(kept)
        batches.append(Remembered(first, count, topic, kept, whole))
        self._bytes += size + EXTRA_BYTES
        while self._bytes > MAX_BYTES or len(batches) > MAX_BATCHES:
            self._bytes -= len(batches.popleft().body) + EXTRA_BYTES

    def numbers_by_topic(self, first: int, last: int) -> dict[str, Ranges]:
        """The numbers of the remembered messages from `first` to `last`."""
        found: defaultdict[str, Ranges] = defaultdict(Ranges)
        for batch in reversed(self._batches):
            if batch.first < first:
                break
            if batch.first <= last:
                found[batch.topic].add(batch.first, batch.first + batch.size - 1)
        return found

    def find(self, message_id: str, number: int = 0) -> Message | None:
        """The message with this id. If its number is known, the search is much faster.

        For a message of a large batch, only id, topic and number are known.
        """
        place = bisect_right(self._batches, number, key=lambda batch: batch.first) - 1 if number else -1
        if place >= 0 and (found := _find(message_id, self._batches[place])) is not None:
            return found
        written = message_id.encode()
        holding = (batch for batch in reversed(self._batches) if written in batch.body)
        return next((found for batch in holding if (found := _find(message_id, batch)) is not None), None)


def _ids(body: bytes) -> bytes:
    try:
        raw = _fields_of(body)["id"] if columns.is_alone(body) else _columns_of(body)[0]
    except (msgspec.DecodeError, KeyError, IndexError, UnicodeDecodeError, RecursionError):
        # No subscriber can read it.
        return b""
    return bytes(raw)


def _split(ids: columns.Strings | str, count: int) -> list[str]:
    return [ids] if isinstance(ids, str) else list(map(bytes.decode, ids.split(count)))


def _find(message_id: str, batch: Remembered) -> Message | None:
    numbers = range(batch.first, batch.first + batch.size)
    try:
        # Messages are decoded only if one has this id: a query can contain any text, which may occur in every payload.
        known = _ids_of(_ids(batch.body) if batch.whole else batch.body)
        if isinstance(known, columns.Strings) and not (
            known.fits(batch.size) and (not isinstance(known.sizes, int) or known.sizes == len(message_id.encode()))
        ):
            return None
        at = _split(known, batch.size).index(message_id)
        if batch.whole:
            return columns.read(batch.topic, batch.body, numbers)[at]
    except (InvalidPayload, msgspec.DecodeError, ValueError, RecursionError):
        return None
    return Message(id=message_id, topic=batch.topic, seq=numbers[at], encoding=ELIDED)
