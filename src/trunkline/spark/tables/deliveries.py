"""Deliveries: the fate of each message for each subscriber, from fates of single messages and of ranges.

They are looked up with Arrow, not by Spark: messages and ranges both rise by number, so a range is found by two binary
searches. Spark would join each message with the ranges near it, and takes seven times as long to write a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.spark.tables.table import SILVER, BuiltTable, Column
from trunkline.topic import TopicTree

Numbers = npt.NDArray[np.int64]

NEEDED = ["seq", "id", "topic", "sender", "time", "accepted", "payload"]
"""The stored columns of messages that deliveries are made of."""
REPEATING = ["topic", "sender", "subscriber", "pattern", "fate", "reason"]
"""Columns with few different values. They have dictionaries, in memory and in files."""
MOST = 1_000_000
"""The approximate number of rows that are made at once."""


class FateLookup:
    """Fates, prepared for lookups. Of two fates of a subscriber that refer to a message, the one in the higher row is
    valid.
    """

    def __init__(self, rows: pa.Table) -> None:
        exact = pc.equal(pc.add(pc.subtract(rows["last"], rows["first"]), 1), rows["count"]).to_numpy()
        # A range that counts all its numbers is as exact as a fate of one message. Replaying adjacent messages writes
        # one.
        rows = rows.take(np.lexsort((rows["number"].to_numpy(), exact)))
        self._first, self._last = rows["first"].to_numpy(), rows["last"].to_numpy()
        encoded = {name: _encoded(rows[name]) for name in ("subscriber", "pattern", "fate", "reason")}
        is_range = pa.array(self._first < self._last)
        ranges = pc.if_else(is_range, rows["number"], None)
        self._rows = pa.table({**encoded, "range": ranges, "settled": rows["time"]})
        self._subscriber = encoded["subscriber"].indices.to_numpy().astype(np.int64)
        self._pattern = pc.fill_null(encoded["pattern"].indices, -1).to_numpy()
        alone = np.flatnonzero(self._first == self._last)
        self._alone = alone[np.argsort(self._first[alone], kind="stable")]
        ranged = np.flatnonzero(is_range)
        self._ranged = ranged[np.argsort(self._pattern[ranged], kind="stable")]
        self._patterns: TopicTree[int] = TopicTree()
        for code in np.unique(self._pattern[ranged]).tolist():
            self._patterns.add(encoded["pattern"].dictionary[code].as_py(), code)
        self._matching = cache(self._patterns.match)

    def delivered(self, messages: pa.RecordBatch) -> Iterator[pa.Table]:
        """The deliveries of these messages, by number. Messages have the columns NEEDED, `placed` and `hour`."""
        topic = _encoded(messages.column("topic"))
        seq = messages.column("seq").to_numpy()
        order = np.argsort(seq, kind="stable")
        found = [
            (places, some, *_bounds(seq[order][places], self._first[some], self._last[some]))
            for places, some in self._groups(seq[order], topic.take(pa.array(order)))
        ]
        total = sum(int(counts.sum()) for *_, counts in found)
        if total > MOST and messages.num_rows > 1:
            half = messages.num_rows // 2
            yield from self.delivered(messages.slice(0, half))
            yield from self.delivered(messages.slice(half))
        elif total:
            places, rows = map(np.concatenate, zip(*(_pairs(*each) for each in found), strict=True))
            valid = self._valid(places, rows)
            yield self._table(messages, topic, order[places[valid]], rows[valid])

    def _groups(self, seqs: Numbers, topics: pa.DictionaryArray) -> Iterator[tuple[Numbers, Numbers]]:
        """Rows of fates, each with the places of the messages to which they may refer. `seqs` rise."""
        if not seqs.size:
            return
        low, high = seqs[0], seqs[-1]
        every = np.arange(seqs.size)
        # A fate of one message is found by its number, whatever the topic of the message.
        begin, end = np.searchsorted(self._first[self._alone], [low, high + 1])
        yield every, self._alone[begin:end]
        met = self._ranged[(self._last[self._ranged] >= low) & (self._first[self._ranged] <= high)]
        if not met.size:
            return
        codes = topics.indices.to_numpy()
        sizes = np.bincount(codes)
        by_topic = np.argsort(codes.astype(np.min_scalar_type(sizes.size)), kind="stable")
        ends = np.cumsum(sizes)
        matched: dict[int, list[Numbers]] = {}
        for code in np.flatnonzero(sizes).tolist():
            for pattern in self._matching(topics.dictionary[code].as_py()):
                matched.setdefault(pattern, []).append(by_topic[ends[code] - sizes[code] : ends[code]])
        for some in np.split(met, np.flatnonzero(np.diff(self._pattern[met])) + 1):
            places = np.concatenate(matched.get(self._pattern[some[0]], [every[:0]]))
            yield every if places.size == every.size else np.sort(places), some

    def _valid(self, places: Numbers, rows: Numbers) -> Numbers:
        """Which of these pairs are valid, in the order of messages and subscribers."""
        keys = places * (self._subscriber.max() + 1) + self._subscriber[rows]
        rising = np.lexsort((rows, keys))
        last = np.append(np.diff(keys[rising]) != 0, True)
        found: Numbers = rising[last]
        return found

    def _table(self, messages: pa.RecordBatch, topic: pa.DictionaryArray, places: Numbers, rows: Numbers) -> pa.Table:
        settled = {name: self._rows[name].take(rows) for name in self._rows.column_names}
        about = {
            "topic": topic,
            "sender": _encoded(messages.column("sender")),
            "bytes": pc.binary_length(messages.column("payload")),
            "published": messages.column("placed"),
            **{name: messages.column(name) for name in ("seq", "id", "accepted", "hour")},
        }
        columns = {**settled, **{name: column.take(places) for name, column in about.items()}}
        lag_us = pc.subtract(*(columns[name].cast(pa.int64()) for name in ("settled", "accepted")))
        columns["lag_ms"] = pc.divide(lag_us.cast(pa.float64(), safe=False), 1000.0)
        columns["bytes"] = columns["bytes"].cast(pa.int64())
        return pa.table({column.name: columns[column.name] for column in TABLE.own_columns})


def _encoded(column: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.dictionary_encode()


def _bounds(seqs: Numbers, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
    """Where the messages of each range begin, and their number."""
    begin = np.searchsorted(seqs, first)
    return begin, np.searchsorted(seqs, last, "right") - begin


def _pairs(places: Numbers, rows: Numbers, begin: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """The place of each message, and the row of its fate."""
    offset = np.repeat(begin - np.cumsum(counts) + counts, counts)
    return places[np.arange(offset.size) + offset], np.repeat(rows, counts)


TABLE = BuiltTable(
    "deliveries",
    SILVER,
    "A row is the fate of a message for a subscriber. A message that is not settled yet has no row",
    (
        Column("seq", "bigint", "the number of the message"),
        Column("id", "string", "the message's id"),
        Column("topic", "string", "where it was published"),
        Column("sender", "string", "who published it"),
        Column("subscriber", "string", "whose fate it is; the bus, if the message was refused"),
        Column("pattern", "string", "the pattern of the subscriber"),
        Column("fate", "string", "delivered, filtered, expired, dropped, dead or refused"),
        Column("range", "bigint", "the number of the row of `fates`, if that is about more than this message"),
        Column("reason", "string", "why, if it was not delivered"),
        Column("published", "timestamp", "where the message is placed"),
        Column("settled", "timestamp", "when its fate was known; in a range, when that of the last message was"),
        Column("lag_ms", "double", "from when the journal accepted it to `settled`"),
        Column("bytes", "bigint", "the size of its payload"),
        Column("hour", "timestamp", "the hour of the message"),
    ),
    has_rows=lambda contents: bool(contents.fates),
    rules=(
        "If several rows of `fates` of one subscriber are about a message, one that counts all its numbers"
        " (`last - first + 1 = count`) goes before one that does not, then the highest `number`",
    ),
)
