"""Shared by the cases that read with Spark: a session, and journals that are created once and read in every round."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
"""With this setting, a million rows are eight files."""
SETTINGS = JournalSettings(seal=False, seal_rows=SEAL_ROWS)

Fill = Callable[[Path, int], None]
"""Creates a journal with a number of messages, of which an eighth is not sealed."""


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from trunkline.spark import session
    from trunkline.spark.source.data_source import register

    shared = SparkSession.getActiveSession() is not None
    spark = session("local[*]")
    try:
        register(spark)
        yield spark
    finally:
        if not shared:
            spark.stop()


class Lakes:
    """Journals with a given number of messages. Each is created once."""

    def __init__(self, folder: Path, fill: Fill, settings: JournalSettings) -> None:
        self._folder = folder
        self._fill = fill
        self._settings = settings

    def partly_sealed(self, count: int) -> Path:
        """A journal of which an eighth is not sealed."""
        place = self._folder / f"{count}"
        if not place.exists():
            self._fill(place, count)
        return place

    def sealed(self, count: int) -> Path:
        """The same messages, all of them in the lake."""
        place = self._folder / f"{count} sealed"
        if not place.exists():
            shutil.copytree(self.partly_sealed(count), place)
            seal(place, self._settings)
        return place


def lakes_of(fill: Fill, settings: JournalSettings) -> Callable[[Path], AbstractContextManager[Lakes]]:
    @contextmanager
    def lakes(folder: Path) -> Iterator[Lakes]:
        with directory() as place:
            yield Lakes(place, fill, settings)

    return lakes


def seal(place: Path, settings: JournalSettings) -> None:
    with Journal(place, settings) as journal:
        journal.seal(everything=True)


def _plain(place: Path, count: int) -> None:
    asyncio.run(_publish(place, count - count // 8))
    seal(place, SETTINGS)
    asyncio.run(_publish(place, count // 8))


async def _publish(place: Path, count: int) -> None:
    messages = payloads(min(count, DIFFERENT))
    with Journal(place, SETTINGS) as journal:
        async with connect("memory:", journal=journal) as bus:
            for number, first in enumerate(range(0, count, AT_ONCE)):
                at = first % DIFFERENT
                await bus.publish_many(f"bench.{number % TOPICS}", messages[at : at + min(AT_ONCE, count - first)])


SPARK = Server(_spark)
LAKES = Server(lakes_of(_plain, SETTINGS))
