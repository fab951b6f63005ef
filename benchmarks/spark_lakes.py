"""What the cases of reading with Spark share: a session, and journals that are made once and read in every round."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.durable import DIFFERENT, payloads
from benchmarks.servers import Server, directory
from trunkline import connect
from trunkline.journal import Journal, JournalSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = 50
AT_ONCE = 1000
SEAL_ROWS = 125_000
"""So that a million rows are eight files."""


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from trunkline.spark import session
    from trunkline.spark.source import register

    shared = SparkSession.getActiveSession() is not None
    spark = session("local[*]")
    try:
        register(spark)
        yield spark
    finally:
        if not shared:
            spark.stop()


class Lakes:
    """Journals, by what is in them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def partly_sealed(self, count: int) -> Path:
        """An eighth is not sealed yet."""
        place = self._folder / f"{count}"
        if not place.exists():
            settings = JournalSettings(seal=False, seal_rows=SEAL_ROWS)
            asyncio.run(_fill(place, count - count // 8, settings))
            _seal(place)
            asyncio.run(_fill(place, count // 8, settings))
        return place

    def sealed(self, count: int) -> Path:
        """The same messages, all of them in the lake."""
        place = self._folder / f"{count} sealed"
        if not place.exists():
            shutil.copytree(self.partly_sealed(count), place)
            _seal(place)
        return place


async def _fill(place: Path, count: int, settings: JournalSettings) -> None:
    messages = payloads(min(count, DIFFERENT))
    with Journal(place, settings) as journal:
        async with connect("memory:", journal=journal) as bus:
            for number, first in enumerate(range(0, count, AT_ONCE)):
                at = first % DIFFERENT
                await bus.publish_many(f"bench.{number % TOPICS}", messages[at : at + min(AT_ONCE, count - first)])


def _seal(place: Path) -> None:
    with Journal(place, JournalSettings(seal=False, seal_rows=SEAL_ROWS)) as journal:
        journal.seal(everything=True)


@contextmanager
def _lakes(folder: Path) -> Iterator[Lakes]:
    with directory() as place:
        yield Lakes(place)


SPARK = Server(_spark)
LAKES = Server(_lakes)
