"""The end of a micro-batch: the last row, or a maximum number of rows. Rows are counted, because numbers have gaps."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from trunkline.journal import Reader
from trunkline.journal.snapshot import Head
from trunkline.spark.source.partitions import sealed_rows
from trunkline.spark.source.row_filter import RowFilter
from trunkline.spark.source.spark_schema import KEYS


def end_within(reader: Reader, wanted: RowFilter, after: int, last: int, max_rows: int) -> int:
    """The end of a micro-batch: a number up to `last` with at most `max_rows` selected rows after `after`.

    The result is greater than `after` if `last` is. Rows are selected by topic and number only: rows that other
    conditions exclude are counted here.
    """
    taken, end = 0, after
    for head in reader.heads(wanted.kind, after + 1, last, wanted.fits, limit=max_rows):
        count = _count(reader.directory, wanted, head, after)
        if taken + count > max_rows:
            return _cut(reader.directory, wanted, head, end, max_rows - taken) or end
        taken, end = taken + count, min(head.last, last)
    # With fewer rows than allowed, there are no more requested rows up to the end.
    return end if taken == max_rows else last


def _count(directory: Path, wanted: RowFilter, head: Head, after: int) -> int:
    if head.first > after:
        return head.rows
    if _is_dense(head):
        return head.last - after
    return len(_numbers(directory, wanted, head, after))


def _cut(directory: Path, wanted: RowFilter, head: Head, after: int, rows: int) -> int | None:
    """The number of the row that reaches the limit after `after`; None if no row fits."""
    if not rows:
        return None
    if _is_dense(head):
        return max(head.first, after + 1) + rows - 1
    numbers = _numbers(directory, wanted, head, after)
    # Fewer rows than expected: it is damaged, which is reported when it is read.
    return int(numbers[rows - 1].as_py()) if len(numbers) >= rows else head.last


def _is_dense(head: Head) -> bool:
    """Whether every number in its range is a requested row."""
    return head.rows == head.last - head.first + 1


def _numbers(directory: Path, wanted: RowFilter, head: Head, after: int) -> pa.Array:
    """The numbers after `after` of the rows of a file with matching topics, in order; none if it cannot be read."""
    assert head.file is not None  # batches are dense
    key = KEYS[wanted.kind]
    topics = RowFilter(wanted.kind, tuple(each for each in wanted.conditions if each.column == "topic"))
    try:
        expression = topics.between(after + 1, head.last).expression()
        found = sealed_rows(directory, head.file).to_table(columns=[key], filter=expression)
    except (OSError, pa.ArrowException):
        return pa.array([], pa.int64())
    return found.column(key).combine_chunks().sort()
