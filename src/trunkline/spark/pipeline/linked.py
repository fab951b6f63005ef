"""Hours that must be rebuilt together, because messages of one refer to messages of another."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from trunkline.spark.pipeline.affected import around
from trunkline.spark.pipeline.driver_rows import DriverRows
from trunkline.spark.pipeline.manifest import JournalState
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables.bronze import MESSAGES
from trunkline.spark.tables.related import ANSWERS, REQUEST

KERNEL = "kernel."


def linked_hours(bronze: DriverRows, state: JournalState, hours: set[str], settings: PipelineSettings) -> set[str]:
    """These hours, and nearby hours with related messages. Relations of relations are followed, too."""
    found = set(hours)
    near = around(state, hours, settings)
    left = set(around(state, near, settings)) - found
    while left:
        more = _pointed_at(bronze, left, *_pointing(bronze, found))
        if not more:
            break
        found |= more
        left -= more
    # Messages of kernels are joined by values in their payloads: all nearby hours with such messages are included.
    others = set(near) - found
    if others and _of_kernels(bronze, hours):
        found |= _of_kernels(bronze, others)
    return found


def _pointing(bronze: DriverRows, hours: set[str]) -> tuple[pa.Array, pa.Array]:
    """The ids that relate messages of these hours to others: request ids and correlation ids."""
    asked, correlated = [], []
    for _, batch in bronze.read(MESSAGES.name, hours, ["type", "request_id", "correlation_id"]):
        asked.append(batch.filter(_asks_or_answers(batch)).column("request_id").drop_null().unique())
        correlated.append(batch.column("correlation_id").drop_null().unique())
    return _together(asked), _together(correlated)


def _asks_or_answers(batch: pa.RecordBatch) -> pa.Array:
    """Which messages are requests or answers. Either can be stored first."""
    return pc.is_in(batch.column("type"), value_set=pa.array([REQUEST, *ANSWERS]))


def _together(parts: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(parts).unique() if parts else pa.array([], pa.string())


def _pointed_at(bronze: DriverRows, hours: set[str], asked: pa.Array, correlated: pa.Array) -> set[str]:
    """The hours with one of these requests, an answer to one, or a message with one of these correlation ids."""
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
