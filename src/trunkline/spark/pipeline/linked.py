"""Hours that belong together, because messages of one point to messages of another."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from trunkline.spark.pipeline.affected import around
from trunkline.spark.pipeline.driver_rows import DriverRows
from trunkline.spark.pipeline.manifest import JournalState
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables.bronze import MESSAGES
from trunkline.spark.tables.requests import ANSWERS, REQUEST

KERNEL = "kernel."


def linked_hours(bronze: DriverRows, state: JournalState, hours: set[str], settings: PipelineSettings) -> set[str]:
    """With the hours around them that hold what messages of these hours belong to, and what that belongs to."""
    found = set(hours)
    near = around(state, hours, settings)
    left = set(around(state, near, settings)) - found
    while left:
        more = _pointed_at(bronze, left, *_pointing(bronze, found))
        if not more:
            break
        found |= more
        left -= more
    # What a kernel sends is joined by what is in the payload: all its hours around are looked at again.
    others = set(near) - found
    if others and _of_kernels(bronze, hours):
        found |= _of_kernels(bronze, others)
    return found


def _pointing(bronze: DriverRows, hours: set[str]) -> tuple[pa.Array, pa.Array]:
    """What joins messages of these hours with others: the ids of requests, and correlation ids."""
    asked, correlated = [], []
    for _, batch in bronze.read(MESSAGES.name, hours, ["type", "request_id", "correlation_id"]):
        asked.append(batch.filter(_asks_or_answers(batch)).column("request_id").drop_null().unique())
        correlated.append(batch.column("correlation_id").drop_null().unique())
    return _together(asked), _together(correlated)


def _asks_or_answers(batch: pa.RecordBatch) -> pa.Array:
    """Either may come first."""
    return pc.is_in(batch.column("type"), value_set=pa.array([REQUEST, *ANSWERS]))


def _together(parts: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(parts).unique() if parts else pa.array([], pa.string())


def _pointed_at(bronze: DriverRows, hours: set[str], asked: pa.Array, correlated: pa.Array) -> set[str]:
    """Those of these hours with one of these requests or an answer to it, or with one of these correlations."""
    found: set[str] = set()
    if not len(asked) and not len(correlated):
        return found
    for hour, batch in bronze.read(MESSAGES.name, hours, ["id", "type", "request_id", "correlation_id"]):
        if hour in found:
            continue
        met = pc.and_(_asks_or_answers(batch), pc.is_in(batch.column("request_id"), value_set=asked))
        for name in ("id", "correlation_id"):
            met = pc.or_(met, pc.is_in(batch.column(name), value_set=correlated))
        if pc.any(met).as_py():
            found.add(hour)
    return found


def _of_kernels(bronze: DriverRows, hours: set[str]) -> set[str]:
    topics = bronze.read(MESSAGES.name, hours, ["topic"])
    return {hour for hour, batch in topics if pc.any(pc.starts_with(batch.column("topic"), KERNEL)).as_py()}
