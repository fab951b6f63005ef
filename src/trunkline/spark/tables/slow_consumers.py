"""Slow consumers: minutes in which a subscriber was slow, or messages for it were dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.spark.tables.table import GOLD, Column, Inputs, QueryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOW, DROPPED = "slow", "dropped"


def build(inputs: Inputs) -> DataFrame:
    slow = F.coalesce(F.col("lag_p50_ms") > inputs.settings.slow_s * 1000, F.lit(False))
    dropped = F.col("dropped") > 0
    why = F.concat_ws(" and ", F.when(slow, SLOW), F.when(dropped, DROPPED))
    worst = F.col("lag_p50_ms").desc_nulls_last(), F.col("dropped").desc(), F.col("subscriber"), F.col("minute")
    rows = inputs.table("subscriber_minute").where(slow | dropped)
    rank = F.row_number().over(Window.partitionBy("hour").orderBy(*worst))
    return TABLE.shape(rows.withColumns({"why": why, "rank": rank}))


TABLE = QueryTable(
    "slow_consumers",
    GOLD,
    "A row is a minute of a subscriber that was slow (the setting `slow_s`), or had no room for a message",
    (
        Column("subscriber", "string", "who"),
        Column("minute", "timestamp", "the minute in which the messages are placed"),
        Column(
            "lag_p50_ms",
            "double",
            "the 50th percentile of the lag, as in `subscriber_minute`; null if nothing was delivered",
        ),
        Column("lag_p99_ms", "double", "the 99th percentile of the lag, as in `subscriber_minute`"),
        Column("dropped", "bigint", "how many messages were dropped because there was no room"),
        Column("delivered", "bigint", "how many were delivered"),
        Column("why", "string", f"{SLOW}, {DROPPED}, or {SLOW} and {DROPPED}"),
        Column("rank", "int", "the rank within the hour, by the longest lag, then by the most dropped messages"),
        Column("hour", "timestamp", "the hour of the minute"),
    ),
    build,
    needs=("subscriber_minute",),
    has_rows=lambda contents: bool(contents.fates),
    rules=(
        f"There is a row for each row of `subscriber_minute` with `lag_p50_ms` above `slow_s`, 1 s (`{SLOW}`), or with"
        f" `dropped` above 0 (`{DROPPED}`)",
        "`rank` counts from 1 in each hour: by `lag_p50_ms`, the longest first and null last, then by `dropped`, the"
        " most first, then by `subscriber` and `minute`",
    ),
)
