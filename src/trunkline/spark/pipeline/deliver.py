"""Makes the deliveries of a step, in the driver: reads bronze, and writes a file for each hour."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trunkline.spark.pipeline.driver_rows import DriverRows, placed, schema_of
from trunkline.spark.pipeline.manifest import JournalState, StoredFile
from trunkline.spark.tables import settled
from trunkline.spark.tables.bronze import FATES, MESSAGES
from trunkline.spark.tables.deliveries import NEEDED, REPEATING, TABLE, FateLookup

if TYPE_CHECKING:
    from trunkline.spark.pipeline.rows import Place

GROUP_ROWS = 500_000
"""The approximate number of rows in a row group."""


class Delivered(NamedTuple):
    files: dict[str, list[StoredFile]]
    settled: pa.Table
    """See settled.py."""


def deliver(place: Place, hours: list[str]) -> Delivered:
    """Write the deliveries of these hours. The files are not committed yet."""
    # Arrow releases the interpreter, so threads use several cores.
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="trunkline-deliveries") as pool:
        done = list(pool.map(partial(_deliver, place), hours))
    files = {hour: [file] for hour, (file, _) in zip(hours, done, strict=True) if file is not None}
    return Delivered(files, pa.concat_tables([settled.SCHEMA.empty_table(), *(counts for _, counts in done)]))


def _deliver(place: Place, hour: str) -> tuple[StoredFile | None, pa.Table]:
    counts = [settled.SCHEMA.empty_table()]
    groups = _groups(_delivered(place, hour, counts))
    file = None
    if (first := next(groups, None)) is not None:
        path = place.warehouse.staging(place.manifest.run) / f"{TABLE.name}-{hour}.parquet"
        rows = first.num_rows
        # Without the schema of Arrow: to other readers these are texts, not dictionaries.
        form = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": [*REPEATING, "range", "settled"]}
        with place.warehouse.reports_errors():
            with pq.ParquetWriter(path, first.schema, store_schema=False, **form) as writer:
                writer.write_table(first)
                for group in groups:
                    writer.write_table(group)
                    rows += group.num_rows
            file = StoredFile(f"{place.manifest.run:06d}-0.parquet", rows, path.stat().st_size)
            place.warehouse.keep(path, TABLE.name, place.journal, hour, file)
    return file, pa.concat_tables(counts)


def _delivered(place: Place, hour: str, counts: list[pa.Table]) -> Iterator[pa.Table]:
    """The deliveries of an hour, in parts. Appends their counts."""
    bronze = DriverRows(place.warehouse, place.journal, place.state)
    span = place.state.hours[hour]
    fates = FateLookup(read_fates(bronze, place.state, span.first, span.last))
    for _, batch in bronze.read(MESSAGES.name, [hour], NEEDED):
        for part in fates.delivered(placed(MESSAGES.name, hour, batch, place.manifest.watermark_s)):
            counts.append(settled.settled(part))
            yield part.drop_columns(["hour"])


def read_fates(bronze: DriverRows, state: JournalState, first: int, last: int) -> pa.Table:
    """Fates that refer to messages with these numbers."""
    about = (pc.field("last") >= first) & (pc.field("first") <= last)
    found = (batch for _, batch in bronze.read(FATES.name, hours_about(state, first, last)))
    return pa.Table.from_batches((batch.filter(about) for batch in found), schema_of(FATES.name))


def hours_about(state: JournalState, first: int, last: int) -> set[str]:
    """The hours with fates that may refer to messages with these numbers."""
    return {hour for hour, span in state.fate_hours.items() if span.meets(first, last)}


def _groups(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, in tables of about GROUP_ROWS."""
    held: list[pa.Table] = []
    for part in parts:
        held.append(part)
        if sum(each.num_rows for each in held) >= GROUP_ROWS:
            # One dictionary for all parts: otherwise the writer would write the texts themselves.
            yield pa.concat_tables(held).unify_dictionaries()
            held.clear()
    if held:
        yield pa.concat_tables(held).unify_dictionaries()
