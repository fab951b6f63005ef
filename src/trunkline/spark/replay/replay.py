"""Replay from the warehouse: what SQL selects goes back onto a bus, in order, at a chosen rate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.bus.bus import Bus
from trunkline.bus.replay import Replayed, replay_these
from trunkline.spark.replay.selection import messages_of, select

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def replay(
    spark: SparkSession,
    warehouse: str | Path,
    query: str,
    bus: Bus,
    *,
    to: str | None = None,
    per_s: float | None = None,
    dry_run: bool = False,
) -> Replayed:
    """Publish again what `query` selects by its `seq`, each as a new message with the old content.

    With `to` it goes below another topic. Answers and notices of then are left out. A dry run only says which it
    would be.
    """
    return await replay_these(bus, messages_of(select(spark, warehouse, query)), to=to, per_s=per_s, dry_run=dry_run)
