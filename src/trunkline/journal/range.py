"""A selection of messages: by topic, by number, by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline.message import Message
from trunkline.moment import Moment, nanoseconds
from trunkline.topic import EVERYTHING, validate_pattern

if TYPE_CHECKING:
    import pyarrow as pa

FOREVER = 2**63 - 1


class Range(msgspec.Struct, frozen=True):
    """Selects messages by topic, by number (both ends included), and by their timestamp."""

    pattern: str = EVERYTHING
    first: int = 1
    last: int = FOREVER
    since_ns: int = 0
    until_ns: int = FOREVER
    """The last nanosecond that is included."""

    @property
    def timed(self) -> bool:
        return self.since_ns > 0 or self.until_ns < FOREVER

    def holds(self, message: Message) -> bool:
        """Whether it is in the range of numbers and times. The caller checks the topic."""
        return self.first <= message.seq <= self.last and self.since_ns <= message.timestamp_ns <= self.until_ns


def range_of(pattern: str, first: int, last: int | None, since: Moment | None, until: Moment | None) -> Range:
    """The requested range; `until` is not included. Raises InvalidTopic, or InvalidSettings for a time."""
    return Range(
        validate_pattern(pattern),
        first,
        FOREVER if last is None else last,
        0 if since is None else nanoseconds(since),
        FOREVER if until is None else nanoseconds(until) - 1,
    )


def cut(batch: pa.RecordBatch, wanted: Range) -> pa.RecordBatch:
    """Only the rows in the range of numbers and times. The caller checks the topic."""
    import pyarrow.compute as pc

    if not batch.num_rows:
        return batch
    seqs = batch.column("seq")
    if seqs[0].as_py() < wanted.first or seqs[-1].as_py() > wanted.last:
        batch = batch.filter(pc.and_(pc.greater_equal(seqs, wanted.first), pc.less_equal(seqs, wanted.last)))
    if wanted.timed:
        times = batch.column("timestamp_ns")
        batch = batch.filter(pc.and_(pc.greater_equal(times, wanted.since_ns), pc.less_equal(times, wanted.until_ns)))
    return batch
