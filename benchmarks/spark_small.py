"""How long does `trunkline pipeline run` take on a small journal, from the command to its exit?

The peer is a program with a plain SparkSession that counts the same rows. Ours uses the class archive, which is created
before the measurement.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import Case, Sample
from benchmarks.servers import together
from benchmarks.small_journals import JOURNALS, sealed_journal
from benchmarks.spark_start import archived

PLAIN = "plain SparkSession, count"
ROWS = 3
MORE_ROWS = 10_000
_RUN = "import sys; from trunkline.cli import main; sys.exit(main())"
_COUNT = """
import sys
from pyspark.sql import SparkSession
with SparkSession.builder.getOrCreate() as spark:
    print(spark.read.parquet(sys.argv[1]).count())
"""


def run(count: int) -> Sample:
    with JOURNALS.running() as place:
        journal = sealed_journal(place, count)
        shutil.rmtree(journal / "warehouse", ignore_errors=True)
        found = _timed(_RUN, "pipeline", "run", str(journal), "--json")
        assert (journal / "warehouse" / "manifest.json").exists()
        return found


def plain(count: int) -> Sample:
    with JOURNALS.running() as place:
        return _timed(_COUNT, str(sealed_journal(place, count) / "messages"))


def _timed(program: str, *words: str) -> Sample:
    from trunkline.spark.session.java import find_java

    environ = {**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, *words], env=environ, capture_output=True, check=True)
    took_s = time.perf_counter() - began
    return Sample(took_s, took_s)


@contextmanager
def _around() -> Iterator[None]:
    with archived(), together(JOURNALS):
        yield


def _case(name: str, count: int, most: float, aim: float) -> Case:
    return Case(
        name=name,
        question=f"trunkline pipeline run on {count:,} messages, from the command to its exit",
        unit="s",
        better="less",
        ours=run,
        peers={PLAIN: plain},
        target={PLAIN: 1 / most},
        aim={PLAIN: 1 / aim},
        size=count,
        fixed=True,
        rounds=5,
        round_s=25.0,
        around=_around,
    )


CASE = _case("spark-small", ROWS, 2.5, 2.0)
MORE = _case("spark-small-10k", MORE_ROWS, 3.5, 2.0)
