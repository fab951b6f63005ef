"""Which messages are left out because an earlier message has the same id.

Messages are processed in the order of their numbers. A message is left out if a message that was kept has the same id
and the hours of the two are at most the horizon apart. The result does not depend on how runs divide the messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyspark.sql import functions as F

from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.times import hour_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SORTED_HERE = 20_000_000
"""The driver sorts up to this many hashes itself, eight bytes each. A shuffle by Spark takes three times as long."""


class Suspect(NamedTuple):
    """A message whose id occurs more than once."""

    seq: int
    id: str
    at: int
    """Its hour, as the number of hours since 1970."""
    is_new: bool
    """If false, it was ingested before, and is kept."""


def left_out(suspects: Iterable[Suspect], reach: int) -> list[int]:
    """The numbers of the new messages to leave out, in order. `reach` is the horizon in hours."""
    kept: dict[str, set[int]] = {}
    found = []
    for each in sorted(suspects):
        hours = kept.setdefault(each.id, set())
        if each.is_new and any(near in hours for near in range(each.at - reach, each.at + reach + 1)):
            found.append(each.seq)
        else:
            hours.add(each.at)
    return found


def suspects(messages: DataFrame, size: int) -> list[Suspect]:
    """The messages whose ids occur more than once, found by Spark. `messages` has `size` rows, and `is_new`."""
    marked = messages.withColumn("mark", F.xxhash64("id"))
    marks = _several(marked.select("mark"), size)
    if not marks:
        return []
    several = driver_frame(messages.sparkSession, ((mark,) for mark in marks), "mark long")
    # Different ids may have the same hash. `left_out` compares the ids.
    some = marked.join(F.broadcast(several), "mark", "left_semi")
    found = some.select("seq", "id", hour_number("hour").alias("at"), "is_new").toArrow()
    return [Suspect(*row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def _several(marks: DataFrame, size: int) -> list[int]:
    """The hashes that occur more than once."""
    if size > SORTED_HERE:
        counts = marks.groupBy("mark").count().where("count > 1")
        return [row["mark"] for row in counts.collect()]
    rising = np.sort(marks.toArrow().column("mark").to_numpy())
    found: list[int] = np.unique(rising[1:][rising[1:] == rising[:-1]]).tolist()
    return found
