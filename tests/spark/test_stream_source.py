"""`spark.readStream.format("trunkline")`: each row once, over restarts and sealing; no more at once than allowed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from tests.journal.journals import Clock, fill, journal_in
from tests.spark import stream_child
from tests.spark.lakes import expected, expected_fates, files_of, random_journal, rows_of
from trunkline.journal import Retention
from trunkline.journal.errors import JournalUnusable, WrongJournal
from trunkline.spark.source import partitions
from trunkline.spark.source.data_source import TrunklineSource, register
from trunkline.spark.source.stream import JournalStreamReader


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


class Query:
    """A query that can be restarted, with one checkpoint, into one directory."""

    def __init__(self, spark: SparkSession, journal: Path, place: Path, **options: Any) -> None:
        self._spark = spark
        self._place = place
        self._source = spark.readStream.format("trunkline").option("journal", str(journal)).options(**options)

    def run(self) -> list[int]:
        """Process everything available. Returns the number of rows of each micro-batch."""
        writer = self._source.schema("seq long, topic string").load().writeStream.format("parquet")
        query = (
            writer.option("checkpointLocation", str(self._place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._place / "rows"))
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def rows(self) -> list[int]:
        found = self._spark.read.schema("seq long").parquet(str(self._place / "rows"))
        return sorted(row["seq"] for row in found.collect())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


# On Spark


@pytest.mark.long
def test_each_row_comes_once_over_restarts_and_sealing(spark: SparkSession, directory: Path, place: Path) -> None:
    with journal_in(directory, seal_rows=30) as journal:
        fill(journal, 3, 10)
        journal.seal(everything=True)
        fill(journal, 2, 10)
        query = Query(spark, directory, place, max_rows=20)
        assert query.run() == [20, 20, 10]
        assert query.rows() == list(range(1, 51))
        # Numbers that were given and not stored; all that is known by now is sealed.
        journal.intake.numbers.last += 100
        fill(journal, 1, 10)
        journal.seal(everything=True)
        fill(journal, 1, 10)
        assert query.run() == [20]
        assert query.run() == []
        assert query.rows() == [*range(1, 51), *range(151, 171)]


@pytest.mark.long
def test_a_driver_that_is_killed_goes_on_where_it_was(spark: SparkSession, directory: Path, place: Path) -> None:
    with journal_in(directory, seal_rows=150) as journal:
        fill(journal, 30, 5)
        journal.seal()
        fill(journal, 30, 5)
        killed = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_child", str(directory), str(place), "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert killed.stdout is not None
            said = [next(killed.stdout, "") for _ in range(2)]
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.communicate()
        assert said == ["written 0\n", "written 1\n"]
        journal.seal(everything=True)
        journal.tender.join()
        stream_child.start(spark, directory, place).awaitTermination()
    found = spark.read.parquet(str(place / "rows"))
    assert sorted(row["seq"] for row in found.select("seq").collect()) == list(range(1, 301))
    assert {row["count"] for row in found.groupBy("batch").count().collect()} == {stream_child.MAX_ROWS}


@pytest.mark.long
def test_a_query_on_another_journal_is_refused(spark: SparkSession, directory: Path, place: Path) -> None:
    with journal_in(directory) as journal:
        fill(journal, 1, 10)
    Query(spark, directory, place).run()
    for path in directory.iterdir():
        path.unlink()
    # It has advanced: the numbers alone do not show that.
    with journal_in(directory) as journal:
        fill(journal, 1, 30)
    with pytest.raises(StreamingQueryException, match="the position belongs to journal"):
        Query(spark, directory, place).run()


# Offsets, without Spark


def stream(directory: Path, **options: str) -> JournalStreamReader:
    source = TrunklineSource({"journal": str(directory), **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, JournalStreamReader)
    return reader


def read(parts: list[InputPartition]) -> list[dict[str, Any]]:
    return rows_of(batch for part in parts for batch in partitions.read(part))


def batches(
    reader: JournalStreamReader, limit: ReadLimit, between: Callable[[], object] = lambda: None
) -> list[list[dict[str, Any]]]:
    """All micro-batches from the initial offset, as Spark would request them."""
    found = []
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, limit)) != offset:
        between()
        found.append(read(reader.partitions(offset, end)))
        offset = end
    reader.stop()
    return found


@pytest.mark.parametrize("seed", range(40, 46))
def test_batches_are_all_rows_and_none_is_too_large(tmp_path: Path, seed: int) -> None:
    directory = random_journal(tmp_path, seed)
    for max_rows in (1 + seed % 7, 25):
        found = batches(stream(directory), ReadMaxRows(max_rows))
        assert [row for batch in found for row in batch] == expected(directory)
        assert all(len(batch) == max_rows for batch in found[:-1])
        found = batches(stream(directory, topic="orders.*.*"), ReadMaxRows(max_rows))
        assert [row for batch in found for row in batch] == expected(directory, "orders.*.*")
        assert all(len(batch) == max_rows for batch in found[:-2])
        fates = batches(stream(directory, kind="fates"), ReadMaxRows(max_rows))
        assert [row for batch in fates for row in batch] == expected_fates(directory)
        assert all(len(batch) == max_rows for batch in fates[:-1])


def test_sealing_between_offsets_and_partitions_changes_nothing(directory: Path) -> None:
    with journal_in(directory, seal_rows=20) as journal:
        fill(journal, 20, 3, "a", "b")
        wanted = expected(directory, "b")

        def seal() -> None:
            journal.seal(everything=len(files_of(directory)) > 1)
            journal.tender.join()

        found = batches(stream(directory, topic="b"), ReadMaxRows(7), seal)
    assert [row for batch in found for row in batch] == wanted
    assert {len(batch) for batch in found[:-1]} == {7}


@pytest.mark.parametrize("kind", ["messages", "fates"])
def test_a_checkpoint_of_another_journal_is_refused(directory: Path, tmp_path: Path, kind: str) -> None:
    for each in (directory, tmp_path / "another"):
        with journal_in(each) as journal:
            fill(journal, 1, 10)
    reader, other = stream(directory, kind=kind), stream(tmp_path / "another", kind=kind)
    start = reader.initialOffset()
    for ask in (
        lambda: other.latestOffset(start, ReadAllAvailable()),
        lambda: other.partitions(start, other.reportLatestOffset()),
        lambda: other.partitions(other.initialOffset(), reader.reportLatestOffset()),
    ):
        with pytest.raises(WrongJournal) as caught:
            ask()
        assert caught.value.expected == start["journal"]
    reader.stop()
    other.stop()


@pytest.mark.parametrize(
    ("options", "first"), [({}, 1), ({"start": "end"}, 21), ({"start": "15"}, 15), ({"start": "25"}, 25)]
)
def test_a_new_query_starts_where_it_is_told(directory: Path, options: dict[str, str], first: int) -> None:
    with journal_in(directory) as journal:
        fill(journal, 1, 10)
        journal.seal(everything=True)
        fill(journal, 1, 10)
        reader = stream(directory, **options)
        start = reader.initialOffset()
        fill(journal, 1, 10)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end == reader.reportLatestOffset() == {"seq": 30, "journal": journal.identity}
        assert [row["seq"] for row in read(reader.partitions(start, end))] == list(range(first, 31))
        reader.stop()


def test_available_now_ends_where_it_began(directory: Path) -> None:
    with journal_in(directory) as journal:
        fill(journal, 1, 10)
        reader = stream(directory, max_rows="7")
        reader.prepareForTriggerAvailableNow()
        fill(journal, 1, 10)
        found = batches(reader, reader.getDefaultReadLimit())
    assert [len(batch) for batch in found] == [7, 3]


def test_an_empty_journal_has_nothing_and_then_something(directory: Path) -> None:
    with journal_in(directory) as journal:
        reader = stream(directory)
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadAllAvailable()) == start == {"seq": 0, "journal": journal.identity}
        assert reader.partitions(start, start) == []
        fill(journal, 1, 3)
        assert reader.latestOffset(start, ReadAllAvailable())["seq"] == 3
        reader.stop()


def test_what_retention_removed_unread_is_told(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with journal_in(directory, retention=(Retention(topics="a", max_count=10),)) as journal:
        fill(journal, 1, 10)
        reader = stream(directory)
        start = reader.initialOffset()
        fill(journal, 4, 10)
        journal.tender.retain()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert [row["seq"] for row in read(reader.partitions(start, end))] == list(range(41, 51))
        assert "retention removed up to 40 messages between 1 and 50, unread" in caplog.text
        caplog.clear()
        # A query that starts now has lost nothing.
        assert [row["seq"] for row in batches(stream(directory), ReadAllAvailable())[0]] == list(range(41, 51))
        assert caplog.text == ""
        reader.stop()


def test_a_query_goes_on_when_all_it_had_read_is_gone(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with journal_in(directory, clock, retention=(Retention(max_age_s=1),)) as journal:
        fill(journal, 1, 10)
        clock.pass_s(10)
        journal.tender.retain()
        reader = stream(directory)
        assert reader.latestOffset({"seq": 10}, ReadAllAvailable())["seq"] == 10
        fill(journal, 1, 5)
        assert reader.latestOffset({"seq": 10}, ReadAllAvailable())["seq"] == 15
        assert [row["seq"] for row in read(reader.partitions({"seq": 10}, {"seq": 15}))] == list(range(11, 16))
        assert "retention, unread" not in caplog.text
        reader.stop()


def test_an_offset_beyond_the_journal_is_refused(directory: Path) -> None:
    with journal_in(directory) as journal:
        fill(journal, 1, 10)
    reader = stream(directory)
    with pytest.raises(JournalUnusable, match="checkpointLocation"):
        reader.latestOffset({"seq": 11}, ReadAllAvailable())
    reader.stop()


def test_a_damaged_file_does_not_stop_the_counting(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with journal_in(directory) as journal:
        for _ in range(3):
            fill(journal, 1, 10, "a")
            fill(journal, 1, 10, "b")
            journal.seal(everything=True)
    (directory / files_of(directory)[1].path).write_bytes(b"not a file of Parquet")
    found = batches(stream(directory, topic="a", skip_damaged="true"), ReadMaxRows(7))
    assert [row["seq"] for batch in found for row in batch] == [*range(1, 11), *range(41, 51)]
    assert max(len(batch) for batch in found) <= 7
    assert "skipped: messages 21 to 40" in caplog.text
