"""Settled: counts of deliveries that several tables share, so that they do not have to read each delivery again."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from trunkline.spark.tables import sketches

KEYS = ["subscriber", "topic", "pattern", "fate", "range", "minute", "bucket", "hour"]
MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("subscriber", "topic", "pattern", "fate")),
        ("range", pa.int64()),
        ("minute", MOMENT),
        ("bucket", pa.int32()),
        ("hour", MOMENT),
        ("count", pa.int64()),
        ("bytes", pa.int64()),
        ("lag_ms", pa.float64()),
        ("lowest", pa.int64()),
        ("highest", pa.int64()),
    ]
)


def settled(deliveries: pa.Table) -> pa.Table:
    """Counts by subscriber, topic, pattern, fate, range, minute, and the `bucket` of the lag of delivered messages.

    If deliveries are counted in parts, there can be several rows with the same keys.
    """
    minute = pc.floor_temporal(deliveries["published"], unit="minute")
    is_delivered = pc.equal(deliveries["fate"], "delivered")
    bucket = pc.if_else(is_delivered, sketches.buckets_of_ms(deliveries["lag_ms"]), None)
    rows = deliveries.append_column("minute", minute).append_column("bucket", bucket)
    counts = rows.group_by(KEYS).aggregate(
        [([], "count_all"), ("bytes", "sum"), ("lag_ms", "max"), ("seq", "min"), ("seq", "max")]
    )
    names = ["count_all", "bytes_sum", "lag_ms_max", "seq_min", "seq_max"]
    return counts.select([*KEYS, *names]).rename_columns(SCHEMA.names).cast(SCHEMA)
