"""Runs tasks with dependencies, several at a time. A task starts when the tasks that it needs are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TaskGraph:
    """If a task fails or Ctrl-C is pressed, the Spark jobs of all tasks are interrupted, and no further task starts."""

    def __init__(self, spark: SparkSession, at_once: int) -> None:
        self._spark = spark
        self._at_once = at_once
        self._tag = f"trunkline-{uuid4()}"
        self._waiting: dict[str, tuple[set[str], Callable[[], object]]] = {}

    def add(self, name: str, needs: Iterable[str], work: Callable[[], object]) -> None:
        self._waiting[name] = (set(needs), work)

    def run(self) -> None:
        running: dict[Future[object], str] = {}
        done: set[str] = set()
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="trunkline-table") as pool:
            try:
                while self._waiting or running:
                    for name in [each for each, (needs, _) in self._waiting.items() if needs <= done]:
                        _, work = self._waiting.pop(name)
                        running[pool.submit(self._tagged, work)] = name
                    ended, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ended:
                        future.result()
                        done.add(running.pop(future))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._spark.interruptTag(self._tag)
                raise

    def _tagged(self, work: Callable[[], object]) -> object:
        self._spark.addTag(self._tag)
        try:
            return work()
        finally:
            self._spark.removeTag(self._tag)
