"""The hour of each row of bronze, computed by the driver during ingest.

A message belongs to the hour of its own time. If that differs from the time of acceptance by the journal by more than
the watermark, the time of acceptance is used instead. `tables/bronze.py` implements the same rule for Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trunkline.journal.sealed import File
from trunkline.spark.pipeline.manifest import MessageRange, name_of_number
from trunkline.spark.tables.bronze import MESSAGES

HOUR_US = 3_600_000_000
GRAIN = 4096
"""Fates refer to ranges of messages. To look up their hours, ranges are rounded to blocks of this many numbers."""

Numbers = npt.NDArray[np.int64]


class HourRows(NamedTuple):
    """The rows of one hour."""

    rows: pa.Table
    about: MessageRange
    """The numbers of these messages, or of the messages to which these fates refer."""
    late: int
    upto_us: int
    """For messages: when the journal accepted the last of them."""


def hour_of_file(file: File, watermark_s: float) -> str | None:
    """The hour of all rows of a sealed file, from its metadata in the journal; None if they may belong to several
    hours.
    """
    since_us, until_us = file.since_ns // 1000, -(-file.until_ns // 1000)
    if file.kind == MESSAGES.name:
        at_us, until_at_us = file.at_ns // 1000, -(-file.until_at_ns // 1000)
        if max(until_us - at_us, until_at_us - since_us) > watermark_s * 1e6:
            return None
    first, last = since_us // HOUR_US, until_us // HOUR_US
    return name_of_number(first) if first == last else None


def split(kind: str, batches: Iterable[pa.RecordBatch], watermark_s: float) -> dict[str, HourRows]:
    """Rows by hour. Within an hour they keep their order."""
    held: dict[int, list[HourRows]] = {}
    for batch in batches:
        if batch.num_rows:
            for number, part in _split(kind, batch, watermark_s):
                held.setdefault(number, []).append(part)
    return {name_of_number(number): _joined(parts) for number, parts in sorted(held.items())}


def _split(kind: str, batch: pa.RecordBatch, watermark_s: float) -> Iterable[tuple[int, HourRows]]:
    own = _numbers(batch, "time")
    late = np.zeros(batch.num_rows, dtype=bool)
    accepted = own
    if kind == MESSAGES.name:
        accepted = _numbers(batch, "accepted")
        late = np.abs(own - accepted) > int(watermark_s * 1e6)
    low, high = ("seq", "seq") if kind == MESSAGES.name else ("first", "last")
    firsts, lasts = _numbers(batch, low), _numbers(batch, high)
    hours = np.where(late, accepted, own) // HOUR_US
    for number in np.unique(hours):
        here = hours == number
        rows = batch if here.all() else batch.filter(pa.array(here))
        about = MessageRange(int(firsts[here].min()), int(lasts[here].max()), rows.num_rows)
        yield (
            int(number),
            HourRows(pa.Table.from_batches([rows]), about, int(late[here].sum()), int(accepted[here].max())),
        )


def _joined(parts: list[HourRows]) -> HourRows:
    about = parts[0].about
    for part in parts[1:]:
        about = part.about.joined(about)
    return HourRows(
        pa.concat_tables([part.rows for part in parts]),
        about,
        sum(part.late for part in parts),
        max(part.upto_us for part in parts),
    )


def grains(rows: pa.Table) -> set[tuple[int, int]]:
    """The ranges of messages to which fates refer, in units of GRAIN. Exact ranges could be millions."""
    low, high = (_numbers(rows, name) // GRAIN for name in ("first", "last"))
    return {(int(first), int(last)) for first, last in np.unique(np.stack([low, high], axis=1), axis=0)}


def _numbers(rows: pa.RecordBatch | pa.Table, name: str) -> Numbers:
    found: Numbers = rows.column(name).cast(pa.int64()).to_numpy(**_COPY[type(rows)])
    return found


_COPY = {pa.RecordBatch: {"zero_copy_only": False}, pa.Table: {}}
