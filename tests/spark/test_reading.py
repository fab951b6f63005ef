"""`messages()` and `fates()`: the rows a Reader finds, whatever is sealed underneath, and damage that is named."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

import trunkline as tl
from tests.journal.journals import fill, journal_in, message, store
from tests.spark.lakes import expected, expected_fates, files_of, flip, random_journal, rewrite, rows_of
from trunkline.errors import InvalidTopic, JournalDamaged
from trunkline.journal import Journal, JournalSettings, Reader
from trunkline.journal.errors import JournalUnusable
from trunkline.spark.source.dataframe import fates, messages


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return rows_of(frame.toArrow())


def numbers(frame: DataFrame) -> list[int]:
    return [row["seq"] for row in rows(frame.select("seq"))]


@pytest.mark.parametrize("seed", range(3))
def test_messages_and_fates_are_those_of_the_reader(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    directory = random_journal(tmp_path, seed)
    assert len(files_of(directory)) > 1
    assert rows(messages(spark, directory)) == expected(directory)
    assert rows(fates(spark, directory)) == expected_fates(directory)


@pytest.mark.parametrize("topic", ["orders.>", "orders.*.paid", "ticks", "chat.*.木", "nothing.>", ">"])
def test_a_selection_is_that_of_the_reader(spark: SparkSession, tmp_path: Path, topic: str) -> None:
    directory = random_journal(tmp_path, 7)
    last = expected(directory)[-1]["seq"]
    wanted = {"first": last // 3, "last": last - 2}
    found = messages(spark, directory, topic=topic, **wanted)
    assert rows(found) == expected(directory, topic, **wanted)


def test_fates_are_chosen_by_their_number(spark: SparkSession, tmp_path: Path) -> None:
    directory = random_journal(tmp_path, 2)
    every = expected_fates(directory)
    first, last = every[2]["number"], every[-2]["number"]
    assert rows(fates(spark, directory, first=first, last=last)) == every[2:-1]


def test_sealing_underneath_leaves_no_gap_and_no_duplicate(spark: SparkSession, tmp_path: Path) -> None:
    published = 0
    read = threading.Event()
    done = threading.Event()

    async def publish_and_seal() -> None:
        nonlocal published
        settings = JournalSettings(seal_rows=40, tend_s=3600.0)
        with Journal(tmp_path, settings) as journal:
            async with tl.connect("memory:", journal=journal) as bus:
                while not done.is_set():
                    await bus.publish_many("ticks", range(10))
                    published += 10
                    read.set()
                    await asyncio.to_thread(journal.seal, everything=True)
                    await asyncio.to_thread(journal.tender.join)

    writer = threading.Thread(target=lambda: asyncio.run(publish_and_seal()))
    writer.start()
    try:
        assert read.wait(30)
        for _ in range(6):
            least = published
            found = numbers(messages(spark, tmp_path))
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= least > 0
    finally:
        done.set()
        writer.join()


def test_a_frame_stays_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    with journal_in(tmp_path, seal_rows=100) as journal:
        for _ in range(8):
            fill(journal, 1, 5)
            journal.seal(everything=True)
        fill(journal, 1, 5)
        frame = messages(spark, tmp_path)
        fill(journal, 1, 5)
        journal.seal(everything=True)
        assert journal.tender.join() > 1
        assert numbers(frame) == list(range(1, 46))
        assert numbers(messages(spark, tmp_path)) == list(range(1, 51))


def test_a_journal_without_messages_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    with journal_in(tmp_path):
        found = messages(spark, tmp_path)
        assert (found.count(), fates(spark, tmp_path).count()) == (0, 0)
        assert found.columns[:3] == ["seq", "id", "topic"]


def test_without_a_journal_it_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JournalUnusable, match="there is no journal here"):
        messages(spark, tmp_path)


def test_a_pattern_that_is_none_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidTopic):
        messages(spark, tmp_path, topic="a.>.b")


def test_large_payloads_are_read_from_journal_and_lake(spark: SparkSession, tmp_path: Path) -> None:
    large = bytes(range(256)) * 40_960
    with journal_in(tmp_path) as journal:
        store(journal, [[message("a", large)]])
        journal.seal(everything=True)
        store(journal, [[message("a", large), message("a", large[1:])]])
    found = rows(messages(spark, tmp_path).select("seq", "payload"))
    assert [row["payload"] for row in found] == [large, large, large[1:]]


def test_a_directory_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "we[i]rd {a,b} *?\\ #%20 ü"
    directory.mkdir()
    with journal_in(directory) as journal:
        fill(journal, 1, 5)
        journal.seal(everything=True)
        fill(journal, 1, 5)
    assert numbers(messages(spark, directory)) == list(range(1, 11))


def test_files_of_other_layouts_are_read_by_name(spark: SparkSession, tmp_path: Path) -> None:
    directory = random_journal(tmp_path, 1)
    file = files_of(directory)[0]
    table = pq.read_table(directory / file.path, partitioning=None)
    newer = table.drop_columns(["trace", "sender"]).append_column("mood", pa.array(["good"] * table.num_rows))
    newer = newer.select(sorted(newer.column_names))
    rewrite(directory, file, newer.replace_schema_metadata({b"trunkline.layout": b"2"}))
    found = rows(messages(spark, directory, last=file.last))
    wanted = [{**row, "trace": None, "sender": None} for row in rows_of(table)]
    assert found == wanted


# Damage


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, Path]:
    """A journal of three files, and the middle one, which is to be damaged."""
    with journal_in(tmp_path) as journal:
        for _ in range(3):
            fill(journal, 1, 10, payload=random.Random(1).randbytes(50))
            journal.seal(everything=True)
        fill(journal, 1, 10)
    return tmp_path, tmp_path / files_of(tmp_path)[1].path


@pytest.mark.parametrize(("size", "why"), [(None, "the file is missing"), (100, "it has 100 bytes, and had")])
def test_a_missing_or_short_file_is_named(
    spark: SparkSession, damaged: tuple[Path, Path], size: int | None, why: str
) -> None:
    directory, path = damaged
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(JournalDamaged, match=why) as caught:
        messages(spark, directory)
    assert path.name in str(caught.value)
    assert f"trunkline journal verify {directory}" in str(caught.value)
    assert (caught.value.first, caught.value.last) == (11, 20)


def test_a_flipped_bit_is_an_error_that_names_the_file(spark: SparkSession, damaged: tuple[Path, Path]) -> None:
    directory, path = damaged
    group = pq.read_metadata(path).row_group(0)
    payloads = group.column(group.num_columns - 1)
    assert payloads.path_in_schema == "payload"
    # The last byte of a page, after its head: with random payloads it is a byte of one.
    flip(path, payloads.data_page_offset + payloads.total_compressed_size - 8)
    with pytest.raises(Py4JJavaError, match=path.name):
        messages(spark, directory).select("payload").collect()


@pytest.mark.parametrize("how", ["gone", "short", "flipped"])
def test_what_is_damaged_can_be_left_out(
    spark: SparkSession, damaged: tuple[Path, Path], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory, path = damaged
    match how:
        case "gone":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:-1])
        case "flipped":
            flip(path, 300)
    told: list[JournalDamaged] = []
    found = messages(spark, directory, skip_damaged=True, on_damage=told.append)
    assert numbers(found) == [*range(1, 11), *range(21, 41)]
    assert [(each.first, each.last) for each in told] == [(11, 20)]
    messages(spark, directory, skip_damaged=True)
    assert path.name in caplog.text


def test_a_damaged_batch_of_the_journal_is_named(spark: SparkSession, damaged: tuple[Path, Path]) -> None:
    directory, _ = damaged
    with journal_in(directory) as journal:
        journal.writer.call(lambda database: database.execute("UPDATE batches SET checksum = 1")).result()
    with pytest.raises(JournalDamaged, match="messages 31 to 40"):
        messages(spark, directory)
    with Reader(directory) as reader:
        assert reader.last() == 40
    assert numbers(messages(spark, directory, skip_damaged=True)) == list(range(1, 31))
