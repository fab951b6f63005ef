"""A query over a journal that writes each micro-batch to its own directory, so that a repeated one replaces itself.

As a program: `python -m tests.spark.stream_child JOURNAL PLACE STOP`. It says which batch it has written, and stands
still in the batch STOP, after the rows are there and before it is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

MAX_ROWS = 100


def start(spark: SparkSession, journal: Path, place: Path, stop: int | None = None) -> StreamingQuery:
    def write(frame: DataFrame, number: int) -> None:
        frame.write.mode("overwrite").parquet(str(place / "rows" / f"batch={number}"))
        print(f"written {number}", flush=True)
        if number == stop:
            sys.stdin.read()

    source = spark.readStream.format("trunkline").option("journal", str(journal)).option("max_rows", MAX_ROWS)
    rows = source.schema("seq long, topic string").load()
    writer = rows.writeStream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    return writer.foreachBatch(write).start()


def main() -> None:
    from tests.spark.conftest import FAST
    from trunkline.spark import session
    from trunkline.spark.source.data_source import register

    journal, place, stop = sys.argv[1:]
    spark = session("local[2]", settings=FAST)
    register(spark)
    start(spark, Path(journal), Path(place), int(stop)).awaitTermination()


if __name__ == "__main__":
    main()
