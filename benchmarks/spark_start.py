"""How long does a program take that starts a Spark session, runs a small query and ends?

Ours uses the class archive, which is created before the measurement. The peer is a plain PySpark session on the same
Java.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.harness import Case, Sample

PLAIN = "plain SparkSession"
WITHOUT = "ours without the archive"

_QUESTION = """
print(spark.range(1000).selectExpr("id % 7 AS k").groupBy("k").count().collect()[0], flush=True)
"""
_OURS = "from trunkline.spark import session; spark = session()" + _QUESTION
_OURS_WITHOUT = "from trunkline.spark import session; spark = session(archive=False)" + _QUESTION
_PLAIN = "from pyspark.sql import SparkSession; spark = SparkSession.builder.getOrCreate()" + _QUESTION


def first_row(size: int, *, program: str) -> Sample:
    from trunkline.spark.session.java import find_java

    environ = {**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            row = process.stdout.readline()
            took_s = time.perf_counter() - began
    assert row.startswith("Row("), f"the program ended with {process.returncode}"
    return Sample(took_s, took_s)


@contextmanager
def archived() -> Iterator[None]:
    subprocess.run(
        [sys.executable, "-m", "trunkline.spark.session.make_class_archive"], check=True, stdout=subprocess.DEVNULL
    )
    yield


CASE = Case(
    name="spark-start",
    question="from the command to the first row of a new Spark session",
    unit="s",
    better="less",
    ours=partial(first_row, program=_OURS),
    peers={PLAIN: partial(first_row, program=_PLAIN), WITHOUT: partial(first_row, program=_OURS_WITHOUT)},
    target={PLAIN: 1.6},
    aim={PLAIN: 1 / 0.6},
    around=archived,
    fixed=True,
    size=1,
    rounds=5,
)
