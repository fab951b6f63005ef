"""Does a run take longer per message if there are more messages? Ten million compared with one and five million."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Case, Sample
from benchmarks.servers import together
from benchmarks.spark_batch import whole_run
from benchmarks.spark_lakes import SPARK
from benchmarks.spark_traffic import BUSY

ROWS = 10_000_000


def run(count: int, *, of: int) -> Sample:
    """Microseconds per message, for a journal of `count / of` messages."""
    with SPARK.running() as spark, BUSY.running() as journals:
        part = count // of
        took_s = whole_run(spark, journals.partly_sealed(part), part)
        return Sample(took_s / part * 1e6, took_s)


CASE = Case(
    name="spark-growth",
    question="a run over ten million messages, for each of them",
    unit="us",
    better="less",
    ours=partial(run, of=1),
    peers={"one million": partial(run, of=10), "five million": partial(run, of=2)},
    target={"one million": 0.95, "five million": 0.95},
    aim={"one million": 1.0, "five million": 1.0},
    size=ROWS,
    fixed=True,
    rounds=2,
    round_s=270.0,
    check_in_full_only=True,
    around=partial(together, SPARK, BUSY),
)
