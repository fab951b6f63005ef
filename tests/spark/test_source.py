"""`spark.read.format("trunkline")`: the rows a Reader finds, as few of them as a query needs, on any executor."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from tests.journal.journals import Clock, fill, journal_in, message, store
from tests.spark.lakes import expected, expected_fates, files_of, flip, random_journal, rewrite, rows_of
from trunkline.errors import InvalidSettings, JournalDamaged
from trunkline.spark.source import partitions, snapshot
from trunkline.spark.source.data_source import JournalReader, TrunklineSource, register
from trunkline.spark.source.partitions import ArrowPart, HotPart, SealedPart
from trunkline.spark.source.spark_schema import all_of

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def load(spark: SparkSession, directory: Path, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("trunkline").option("journal", str(directory)).options(**options)
    return (reader.schema(schema) if schema else reader).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return rows_of(frame.toArrow())


def reader_of(directory: Path, **options: str) -> JournalReader:
    source = TrunklineSource({"journal": str(directory), **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, JournalReader)
    return reader


def read(parts: list[InputPartition]) -> list[dict[str, Any]]:
    return rows_of(batch for part in parts for batch in partitions.read(part))


# What is read


@pytest.mark.parametrize("seed", range(2))
def test_messages_and_fates_are_those_of_the_reader(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    directory = random_journal(tmp_path, seed)
    assert rows(load(spark, directory)) == expected(directory)
    assert rows(load(spark, directory, kind="fates")) == expected_fates(directory)


@pytest.mark.parametrize("seed", range(20, 30))
def test_partitions_hold_what_the_reader_finds(tmp_path: Path, seed: int) -> None:
    directory = random_journal(tmp_path, seed)
    every = expected(directory)
    assert read(reader_of(directory).partitions()) == every
    assert read(reader_of(directory, kind="fates").partitions()) == expected_fates(directory)
    middle = every[len(every) // 2]
    since, until = middle["time"], middle["time"] + timedelta(hours=9)
    asked = {"topic": "orders.*.*", "first": "5", "last": str(every[-1]["seq"] - 1)}
    parts = reader_of(directory, since=since.isoformat(), until=str(until.timestamp()), **asked).partitions()
    wanted = expected(directory, "orders.*.*", first=5, last=every[-1]["seq"] - 1)
    # By its own time, which is kept to the nanosecond, and given to the microsecond.
    assert read(parts) == [row for row in wanted if since <= row["time"] < until]


def test_a_journal_without_messages_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with journal_in(tmp_path):
        assert load(spark, tmp_path).count() == 0


def test_large_payloads_travel_whole(spark: SparkSession, tmp_path: Path) -> None:
    large = bytes(range(256)) * 40_960
    with journal_in(tmp_path) as journal:
        store(journal, [[message("a", large)]])
        journal.seal(everything=True)
        store(journal, [[message("a", large), message("a", b"small")]])
    found = rows(load(spark, tmp_path, "seq long, payload binary"))
    assert [row["payload"] for row in found] == [large, large, b"small"]


def test_files_of_other_layouts_are_read_by_name(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = random_journal(tmp_path, 1)
    file = files_of(directory)[0]
    table = pq.read_table(directory / file.path, partitioning=None)
    newer = table.drop_columns(["trace", "sender"]).append_column("mood", pa.array(["good"] * table.num_rows))
    rewrite(directory, file, newer.replace_schema_metadata({b"trunkline.layout": b"2"}))
    found = read(reader_of(directory, last=str(file.last)).partitions())
    assert found == [{**row, "trace": None, "sender": None} for row in rows_of(table)]


def test_a_large_row_group_of_an_older_file_is_read_in_slices(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with journal_in(tmp_path) as journal:
        store(journal, [[message("a", bytes(2**20), id=str(each))] for each in range(60)])
        journal.seal(everything=True)
    (file,) = files_of(tmp_path)
    rewrite(tmp_path, file, pq.read_table(tmp_path / file.path, partitioning=None))
    assert pq.ParquetFile(tmp_path / file.path).num_row_groups == 1
    reader = reader_of(tmp_path)
    (part,) = reader.partitions()
    batches = list(reader.read(part))
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.nbytes for batch in batches) < 16 * 2**20


# What travels


def test_executors_need_the_lake_and_not_the_journal(tmp_path: Path) -> None:
    directory = random_journal(tmp_path, 3)
    every = expected(directory)
    reader = reader_of(directory)
    sent = pickle.dumps((reader, reader.partitions()))
    for path in directory.glob("journal.*"):
        path.unlink()
    there, parts = pickle.loads(sent)
    assert {type(part) for part in parts} == {SealedPart, HotPart}
    assert rows_of(batch for part in parts for batch in there.read(part)) == every


def test_a_partition_has_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_BYTES", 20_000)
    with journal_in(tmp_path) as journal:
        few = [[message("a", bytes(1000), id=str(10 * each + one)) for one in range(10)] for each in range(7)]
        store(journal, [*few, [message("a", bytes(30_000))]])
    parts = reader_of(tmp_path).partitions()
    sizes = [sum(len(row.body) for row in part.rows) for part in parts if isinstance(part, HotPart)]
    assert len(sizes) == len(parts) > 4
    assert max(sizes[:-1]) < 25_000 < sizes[-1] < 35_000
    assert [row["seq"] for row in read(parts)] == list(range(1, 72))


def test_payloads_travel_only_if_they_are_read(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        store(journal, [[message("a", bytes(100_000), id=str(each)) for each in range(10)]])
    columns = StructType([all_of("messages")["seq"], all_of("messages")["topic"]])
    parts = list(TrunklineSource({"journal": str(tmp_path)}).reader(columns).partitions())
    assert [type(part) for part in parts] == [ArrowPart]
    assert len(pickle.dumps(parts)) < 5_000
    assert read(parts) == [{"seq": seq, "topic": "a"} for seq in range(1, 11)]


def test_damage_in_an_unsealed_batch_is_reported_where_it_is_read(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        store(journal, [[message("a", id=str(each))] for each in range(3)])
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database, database:
        database.execute("UPDATE batches SET body = zeroblob(length(body)) WHERE first = 2")
    with pytest.raises(JournalDamaged, match=r"journal verify .* checks all"):
        read(reader_of(tmp_path).partitions())
    assert [row["seq"] for row in read(reader_of(tmp_path, skip_damaged="true").partitions())] == [1, 3]


# Columns


def test_a_schema_chooses_columns(spark: SparkSession, tmp_path: Path) -> None:
    directory = random_journal(tmp_path, 4)
    found = load(spark, directory, "topic string, seq bigint")
    assert found.columns == ["topic", "seq"]
    assert rows(found) == [{"topic": row["topic"], "seq": row["seq"]} for row in expected(directory)]


@pytest.mark.parametrize("schema", ["seq string", "sequence bigint"])
def test_a_schema_with_other_columns_is_refused(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    directory = random_journal(tmp_path, 4, steps=2)
    with pytest.raises(PySparkException, match="messages have these columns: seq bigint, id string"):
        load(spark, directory, schema).count()


# Options


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"topik": "a"}, "did you mean 'topic'"),
        ({"kind": "letters"}, "letters"),
        ({"first": "one"}, "first"),
        ({"since": "yesterday"}, "2026-11-16T10:00:00Z"),
        ({"kind": "fates", "topic": "a"}, "fates have no topic"),
        ({"start": "middle"}, "the beginning, the end, or a number"),
        ({"journal": "a/b"}, "give an absolute path"),
        ({"journal": ""}, "which journal"),
        ({"max_rows": "0"}, "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        reader_of(tmp_path, **options)


def test_a_bad_option_is_told_when_loading(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="did you mean 'topic'"):
        load(spark, tmp_path, topik="a")


def test_a_path_is_a_journal(spark: SparkSession, tmp_path: Path) -> None:
    directory = random_journal(tmp_path, 5, steps=3)
    assert spark.read.format("trunkline").load(str(directory)).count() == len(expected(directory))


def test_without_a_journal_it_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no journal here"):
        load(spark, tmp_path).count()


# Filters


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten files of an hour each, of ten messages each on one of two topics; and two batches that are not sealed."""
    directory = tmp_path_factory.mktemp("hours")
    clock = Clock(int(datetime(2026, 11, 16, tzinfo=UTC).timestamp()) * 1_000_000_000)
    with journal_in(directory, clock) as journal:
        for hour in range(12):
            fill(journal, 1, 10, ("orders.placed", "ticks")[hour % 2])
            if hour < 10:
                journal.seal(everything=True)
            clock.pass_s(3600)
    return directory


def at(hour: int) -> datetime:
    return datetime(2026, 11, 16, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "parts", "count"),
    [
        ([EqualTo(("topic",), "ticks")], 6, 60),
        ([In(("topic",), ("ticks", None, "x"))], 6, 60),
        ([StringStartsWith(("topic",), "ord")], 6, 60),
        ([EqualTo(("topic",), "x")], 0, 0),
        ([GreaterThan(("seq",), 95)], 2, 25),
        ([GreaterThanOrEqual(("seq",), 95), LessThanOrEqual(("seq",), 95)], 1, 1),
        ([EqualTo(("seq",), 7)], 1, 1),
        ([In(("seq",), (7, 8, 55))], 2, 3),
        ([LessThan(("time",), at(2))], 2, 20),
        ([EqualTo(("time",), at(3))], 1, 10),
        ([GreaterThanOrEqual(("accepted",), at(9)), EqualTo(("topic",), "ticks")], 2, 20),
        ([GreaterThan(("timestamp_ns",), int(at(10).timestamp()) * 10**9)], 1, 10),
        ([EqualTo(("id",), "17")], 11, 1),
    ],
)
def test_filters_leave_out_files_and_rows(hours: Path, filters: list[Filter], parts: int, count: int) -> None:
    reader = reader_of(hours)
    assert list(reader.pushFilters(filters)) == []
    found = reader.partitions()
    assert len(found) == parts
    assert len(read(found)) == count


def test_what_cannot_be_pushed_stays_with_spark(hours: Path) -> None:
    reader = reader_of(hours)
    filters: list[Filter] = [
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "ticks")),
        StringEndsWith(("topic",), "s"),
        GreaterThan(("topic",), "a"),
        EqualTo(("payload",), b"x"),
        EqualTo(("ttl_s",), 1.0),
        EqualTo(("seq",), 1.5),
        EqualTo(("requires_ack",), True),
        LessThan(("time",), datetime(2026, 1, 1)),
    ]
    assert list(reader.pushFilters(filters)) == filters
    assert len(read(reader.partitions())) == 120


@pytest.mark.parametrize("enabled", [True, False])
def test_a_query_gives_the_same_with_pushdown_and_without(spark: SparkSession, hours: Path, enabled: bool) -> None:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, enabled)
    try:
        frame = load(spark, hours)
        chosen = frame.where("topic = 'ticks' and seq > 35 and time < timestamp'2026-11-16 06:00:00' and id <> '37'")
        assert [row["seq"] for row in rows(chosen)] == [36, *range(38, 41), *range(51, 61)]
        assert chosen.rdd.getNumPartitions() == (2 if enabled else 11)
    finally:
        spark.conf.set(PUSHDOWN, str(before))


# Damage


@pytest.mark.parametrize("how", ["gone", "short", "flipped"])
def test_a_damaged_file_is_named_or_left_out(
    spark: SparkSession, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with journal_in(tmp_path) as journal:
        for _ in range(3):
            fill(journal, 1, 10)
            journal.seal(everything=True)
        fill(journal, 1, 10)
    path = tmp_path / files_of(tmp_path)[1].path
    match how:
        case "gone":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:-1])
        case "flipped":
            flip(path, 300)
    with pytest.raises(PySparkException, match=path.name) as caught:
        load(spark, tmp_path, "seq long").collect()
    assert f"trunkline journal verify {tmp_path}" in str(caught.value)
    found = load(spark, tmp_path, "seq long", skip_damaged="true")
    assert [row["seq"] for row in rows(found)] == [*range(1, 11), *range(21, 41)]
    # Workers write their log to standard error. Here it can be seen.
    read(reader_of(tmp_path, skip_damaged="true").partitions())
    assert f"skipped: messages 11 to 20 ({path.relative_to(tmp_path)}) are damaged" in caplog.text


def test_a_file_that_goes_bad_after_planning_is_noticed(tmp_path: Path) -> None:
    directory = random_journal(tmp_path, 6)
    parts = reader_of(directory).partitions()
    flip(directory / files_of(directory)[0].path, 300)
    with pytest.raises(JournalDamaged, match="its checksum does not match"):
        read(parts)


def test_the_schema_is_that_of_the_documents() -> None:
    assert TrunklineSource({"journal": "/j"}).schema() == all_of("messages")
    assert all_of("fates").fieldNames()[0] == "number"
