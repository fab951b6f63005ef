"""How long does it take from a publish until a streaming query has processed it?

Each batch is published when the previous one was processed. The peer is Spark's stream of Parquet files, one a batch.
"""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.durable import payloads
from benchmarks.harness import Case, Sample
from benchmarks.servers import directory
from benchmarks.spark_lakes import SPARK
from trunkline import Message, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = "Spark's stream of Parquet files"
MESSAGES = 100
BATCHES = 20
WARM_UP = 5
PATIENCE_S = 120
Publish = Callable[[int], Awaitable[object]]  # publishes a batch that begins after this number


async def watch(count: int, stream: DataFrame, publish: Publish, folder: Path) -> Sample:
    """Milliseconds. The first batches are warm-up, and do not count."""
    from pyspark.sql import functions as F

    seen: queue.Queue[int] = queue.Queue()
    writer = stream.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.foreachBatch(lambda rows, _: seen.put(rows.agg(F.max("seq")).collect()[0][0] or 0)).start()
    took: list[float] = []
    try:
        for batch in range(WARM_UP + count):
            began = time.perf_counter()
            await publish(batch * MESSAGES)
            while seen.get(timeout=PATIENCE_S) < (batch + 1) * MESSAGES:
                pass
            took.append(time.perf_counter() - began)
    finally:
        query.stop()
    return Sample(statistics.median(took[WARM_UP:]) * 1000, sum(took))


async def ours(count: int) -> Sample:
    with SPARK.running() as spark, directory() as folder:
        async with connect("memory:", journal=folder / "journal") as bus:
            await bus.flush()
            stream = spark.readStream.format("trunkline").option("journal", str(folder / "journal")).load()
            return await watch(count, stream, lambda _: bus.publish_many("bench.x", payloads(MESSAGES)), folder)


async def files(count: int) -> Sample:
    from trunkline.spark.source.spark_schema import all_of

    with SPARK.running() as spark, directory() as folder:
        (folder / "messages").mkdir()
        stream = spark.readStream.schema(all_of("messages")).parquet(str(folder / "messages"))
        return await watch(count, stream, partial(write, folder), folder)


async def write(folder: Path, after: int) -> None:
    """Write a file under a hidden name, then rename it. It is not synced, which would only take longer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from trunkline.journal.body import make_batch
    from trunkline.journal.layout import of_rows

    messages = [
        Message(topic="bench.x", payload=payload, id=str(number), timestamp_ns=1, seq=number)
        for number, payload in enumerate(payloads(MESSAGES), after + 1)
    ]
    hidden = folder / "messages" / f".{after}"
    pq.write_table(pa.Table.from_batches(of_rows([make_batch(messages, 1)], print)), hidden, compression="zstd")
    hidden.rename(folder / "messages" / f"{after}.parquet")


CASE = Case(
    name="spark-tail",
    question="from a publish until a streaming query has seen it, 100 messages at once",
    unit="ms",
    better="less",
    ours=ours,
    peers={FILES: files},
    target={FILES: 1.0},
    size=BATCHES,
    fixed=True,
    rounds=5,
    around=SPARK.running,
)
