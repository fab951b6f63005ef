"""Spark in its own process: it starts during the first chapters, and then executes commands, one a line."""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

import trunkline as tl

# The work is over before Java's second compiler would pay: without it this takes half the time. No archive of classes
# is made, because that goes on after the end of the program.
SETTINGS = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
writing = threading.Lock()


def answer(**values: Any) -> None:
    """A line of JSON, whichever thread writes it: tables are made in several."""
    with writing:
        print(json.dumps(values, default=str), flush=True)


def main(journal: str, warehouse: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tl.spark.session(settings=SETTINGS, archive=False) as spark:
        from trunkline.spark.pipeline.views import register
        from trunkline.spark.report import report

        answer(version=spark.version)
        for line in sys.stdin:
            match json.loads(line):
                case ["run"]:
                    progress = lambda table, done, of: answer(table=table, done=done, of=of)  # noqa: E731
                    with tl.spark.Pipeline(spark, journal, warehouse, progress=progress) as pipeline:
                        run = pipeline.run()
                    answer(messages=run.messages, tables=len(register(spark, warehouse)))
                case ["sql", query]:
                    answer(rows=[row.asDict() for row in spark.sql(query).collect()])
                case ["report", file]:
                    answer(report=str(report(spark, warehouse, file)))


if __name__ == "__main__":
    main(*sys.argv[1:])
