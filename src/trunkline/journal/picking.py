"""Single messages from sealed files, by their numbers: only the row groups that contain them are read.

The caller must have checked the file: the end of a file has no separate checksum, and damage there can crash the
process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trunkline.errors import JournalDamaged
from trunkline.journal import lake
from trunkline.journal.layout import MESSAGES, fit, to_messages
from trunkline.journal.sealed import File
from trunkline.message import Message


def pick(directory: Path, file: File, seqs: Collection[int]) -> Iterator[Message]:
    """The messages with these numbers in the file, in order. Raises JournalDamaged if they cannot be read."""
    wanted = pa.array(sorted(seqs), pa.int64())
    with _opened(directory, file) as parquet:
        for group in range(parquet.num_row_groups):
            low, high = _span(parquet, group)
            if not any(low <= seq <= high for seq in seqs):
                continue
            for batch in lake.group_slices(parquet, group):
                chosen = batch.filter(pc.is_in(batch.column("seq"), value_set=wanted))
                if chosen.num_rows:
                    yield from to_messages(fit(chosen, MESSAGES))


def last_number(directory: Path, file: File, topic: str, upto: int) -> int | None:
    """The highest number up to `upto` that the file has on a topic. Raises JournalDamaged."""
    with _opened(directory, file) as parquet:
        for group in reversed(range(parquet.num_row_groups)):
            if _span(parquet, group)[0] > upto:
                continue
            table = parquet.read_row_group(group, columns=["seq", "topic"])
            fitting = pc.and_(pc.equal(table.column("topic"), topic), pc.less_equal(table.column("seq"), upto))
            if (seq := pc.max(table.column("seq").filter(fitting)).as_py()) is not None:
                return int(seq)
    return None


def _span(parquet: pq.ParquetFile, group: int) -> tuple[int, int]:
    column = parquet.schema_arrow.names.index("seq")
    statistics = parquet.metadata.row_group(group).column(column).statistics
    return statistics.min, statistics.max


@contextmanager
def _opened(directory: Path, file: File) -> Iterator[pq.ParquetFile]:
    try:
        with lake.opened(directory, file, check_pages=True) as parquet:
            yield parquet
    except (LookupError, ValueError, AttributeError) as error:
        # The end of a file has no separate checksum: columns and statistics may be missing or wrong.
        raise JournalDamaged(file.first, file.last, file.path, f"it cannot be read: {error}") from error
