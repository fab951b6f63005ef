"""`python -m trunkline.spark.session.make_class_archive` makes the class archive now: for container images and CI.

Without this command, the first program that finds no archive starts its creation in the background at exit. A JVM
writes its archive when it exits, so a separate JVM runs a small workload and exits. The archive gets a temporary name
first; only a complete file is renamed to the final name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.errors import TrunklineError
from trunkline.spark.session.class_archive import Archive, checksum
from trunkline.spark.session.java import Java, find_java
from trunkline.spark.session.start import begin, spark_archive

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

POLITE = 10
WRITE_S = 600.0


def main() -> int:
    """Exit code 0 if the archive exists, or another process is creating it; 1 if it cannot be created."""
    try:
        java = find_java()
        archive = spark_archive(java)
    except (TrunklineError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    if archive is None:
        print(f"Java {java.version} in {java.home} cannot make an archive", file=sys.stderr)
        return 1
    try:
        print(make(archive, partial(learn, java)) or "another process is making it")
    except OSError as error:
        print(f"no archive was made: {error}", file=sys.stderr)
        return 1
    return 0


def make(archive: Archive, learn: Callable[[list[str]], None]) -> Path | None:
    """Create the archive if it does not exist, with a Java that runs the workload with these options.

    Returns None if another process is creating it. Raises OSError if it cannot be created.
    """
    archive.folder.mkdir(parents=True, exist_ok=True)
    with _alone(archive) as alone:
        if not alone:
            return None
        if found := archive.find():
            return found
        for left in archive.folder.glob(f".{archive.name}.*"):
            left.unlink(missing_ok=True)  # left by a process that was killed
        fresh = archive.folder / f".{archive.name}.{os.getpid()}"
        try:
            learn(archive.training_options(fresh))
            return _keep(archive, fresh)
        except Exception as error:
            archive.refused.write_text(f"{type(error).__name__}: {error}\n")
            raise
        finally:
            fresh.unlink(missing_ok=True)


@contextmanager
def _alone(archive: Archive) -> Iterator[bool]:
    import fcntl

    with (archive.folder / f"{archive.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _keep(archive: Archive, fresh: Path) -> Path:
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.chmod(0o644)
    made = archive.folder / archive.file_name(checksum(fresh))
    fresh.rename(made)
    archive.refused.unlink(missing_ok=True)
    archive.sweep(made)
    return made


def learn(java: Java, options: list[str]) -> None:
    """Run the typical operations of a session once, so that their classes are loaded. Returns when Java has ended."""
    with (
        tempfile.TemporaryDirectory() as folder,
        begin("local[2]", "train", {}, java, options, patience_s=WRITE_S) as spark,
    ):
        process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        batch_work(spark, f"{folder}/rows")
        stream_work(spark, f"{folder}/rows", folder)
    if process.returncode != 0:
        raise OSError(f"Java ended with {process.returncode}")


def batch_work(spark: SparkSession, rows: str) -> None:
    spark.range(1000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
    spark.range(1000).selectExpr(
        "id", "id % 7 AS k", "timestamp_micros(id) AS at", "to_json(struct(id)) AS body", "map('a', 'b') AS headers"
    ).write.parquet(rows)
    table = spark.read.parquet(rows)
    table.createOrReplaceTempView("rows")
    spark.sql("SELECT k, count(DISTINCT id), max(at), percentile(id, 0.5) FROM rows GROUP BY k ORDER BY k").toArrow()
    table.join(table.filter("k = 3").select("id"), "id", "left").dropDuplicates(["k"]).collect()
    table.selectExpr("get_json_object(body, '$.id')", "headers['a']", "decode(encode(body, 'utf-8'), 'utf-8')").count()
    table.select("id").mapInArrow(_same, "id long").count()
    spark.createDataFrame([(1, "a")], "id int, name string").toPandas()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _take(batch: DataFrame, number: int) -> None:
    batch.count()


def stream_work(spark: SparkSession, rows: str, folder: str) -> None:
    seen = spark.readStream.schema(spark.read.parquet(rows).schema).parquet(rows).withWatermark("at", "1 minute")
    counted = seen.dropDuplicates(["id", "at"]).groupBy("at", "k").count()
    counted.writeStream.trigger(availableNow=True).option("checkpointLocation", f"{folder}/checkpoint").foreachBatch(
        _take
    ).start().awaitTermination()


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(POLITE)
    sys.exit(main())
