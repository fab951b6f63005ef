"""Replay from the warehouse: messages that SQL selects are published on a bus again, in order, at a chosen rate."""

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
    """Publish the messages again that `query` selects by `seq`, each as a new message with the old content.

    With `to`, the topics are prefixed with another topic. Recorded answers and notices are left out. A dry run only
    returns which messages would be published.
    """
    return await replay_these(bus, messages_of(select(spark, warehouse, query)), to=to, per_s=per_s, dry_run=dry_run)
