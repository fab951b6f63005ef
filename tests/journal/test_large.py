"""Large messages: files, row groups and Arrow batches are bounded by bytes, and no row is skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trunkline as tl
from tests.journal.journals import NS, Clock, fail_on_damage, fill, journal_in, message, seqs, store
from trunkline.journal import Journal, JournalSettings, Reader, lake, layout
from trunkline.journal.repair.verify import verify

MIB = 1024 * 1024


def groups_of(journal: Journal) -> list[list[int]]:
    """The uncompressed bytes of each row group, file by file."""
    found = []
    for file in journal.reader.files():
        with pq.ParquetFile(journal.directory / file.path) as parquet:
            meta = parquet.metadata
            found.append([meta.row_group(at).total_byte_size for at in range(meta.num_row_groups)])
    return found


def payloads_of(journal: Journal) -> list[int]:
    """The bytes of the payloads of each file."""
    rows = journal.reader.query("SELECT sum(bytes) FROM file_topics GROUP BY path ORDER BY path")
    return [size for (size,) in rows]


def catch_up(reader: Reader, pattern: str = ">", after: int = 0) -> list[int]:
    """The numbers that a durable subscription gets."""
    found: list[int] = []
    while True:
        messages, upto = reader.some_after(pattern, after, 1000)
        if upto == after:
            return found
        found += seqs(messages)
        after = upto


# What is written


def test_a_row_group_is_bounded_by_bytes(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        written = fill(journal, 40, payload=bytes(MIB))
        journal.seal(everything=True)
        ((*groups,),) = groups_of(journal)
        assert sum(groups) > 40 * MIB
        assert max(groups) <= lake.GROUP_BYTES
        assert catch_up(journal.reader) == seqs(written)


def test_a_message_that_is_larger_than_a_row_group_has_one_of_its_own(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        sizes = [1, lake.GROUP_BYTES + 1, 1, 3 * lake.GROUP_BYTES]
        written = store(journal, [[message("a", bytes(size), id=str(size))] for size in sizes])
        journal.seal(everything=True)
        assert len(groups_of(journal)[0]) == 4
        assert list(journal.reader.messages()) == written
        assert catch_up(journal.reader) == seqs(written)


def test_files_are_joined_by_the_bytes_they_hold_not_by_those_on_disk(tmp_path: Path) -> None:
    """Zeros take no room on disk."""
    with journal_in(tmp_path, seal_rows=1000, seal_bytes=MIB) as journal:
        written: list[tl.Message] = []
        for _ in range(12):
            written += fill(journal, 1, 2, payload=bytes(MIB // 10))
            journal.seal(everything=True)
        assert sum(file.bytes for file in journal.reader.files()) < MIB // 2
        while journal.tender.join():
            pass
        assert len(journal.reader.files()) in (3, 4)
        assert max(payloads_of(journal)) <= MIB
        assert list(journal.reader.messages()) == written
        assert catch_up(journal.reader) == seqs(written)


def test_files_that_are_large_by_bytes_are_not_joined_again_and_again(tmp_path: Path) -> None:
    with journal_in(tmp_path, seal_rows=1000, seal_bytes=MIB) as journal:
        for _ in range(10):
            fill(journal, 1, 6, payload=bytes(MIB // 10))
            journal.seal(everything=True)
        assert journal.tender.join() == 0


def test_fates_are_sealed_by_bytes_too(tmp_path: Path) -> None:
    clock = Clock()
    with journal_in(tmp_path, clock, seal_bytes=100_000, seal_age_s=3600) as journal:
        (one,) = fill(journal, 1)
        for number in range(30):
            journal.ledger.fate("x", "a", tl.Fate.DROPPED, 1, 1, 1, f"{number}".rjust(10_000), clock.now_ns)
        journal.intake.flush()
        journal.seal()
        assert [file.rows for file in journal.reader.files("fates")] == [10, 10, 10]
        assert [int(fate.reason) for fate in journal.reader.fates_of(one)] == list(range(30))


def test_what_messages_share_is_not_multiplied_in_one_arrow_batch(tmp_path: Path) -> None:
    """A header that all messages of a batch have is stored once. In Arrow each has its own."""
    with journal_in(tmp_path) as journal:
        shared = {"k": "x" * 60_000}
        written = store(journal, [[message("a", b"1", id=str(at), headers=shared) for at in range(900)]])
        batches = list(journal.reader.arrow())
        assert sum(batch.nbytes for batch in batches) > 50 * MIB
        assert max(batch.nbytes for batch in batches) <= layout.BATCH_BYTES
        assert [each for batch in batches for each in layout.to_messages(batch)] == written
        journal.seal(everything=True)
        assert list(journal.reader.messages()) == written
        assert max(batch.nbytes for batch in journal.reader.arrow()) <= layout.BATCH_BYTES


# What is read


def as_an_older_one_wrote_it(journal: Journal) -> None:
    """One row group, however large it is."""
    (file,) = journal.reader.files()
    path = journal.directory / file.path
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table, path, row_group_size=len(table), compression="zstd", use_dictionary=False)
    listed = (path.stat().st_size, lake.checksum_of(path))
    journal.writer.call(lambda database: database.execute("UPDATE files SET bytes = ?, checksum = ?", listed))


@pytest.mark.parametrize(
    "read",
    [
        lambda reader: catch_up(reader),
        lambda reader: seqs(reader.messages()),
        lambda reader: [seq for batch in reader.arrow() for seq in batch["seq"].to_pylist()],
        lambda reader: seqs(reader.tail(">", 1000)),
        lambda reader: seqs(reader.some(list(range(1, 101)))),
    ],
    ids=["some_after", "messages", "arrow", "tail", "some"],
)
def test_an_older_file_is_read_in_slices(tmp_path: Path, read: Callable[[Reader], list[int]]) -> None:
    with journal_in(tmp_path) as journal:
        fill(journal, 100, payload=bytes(MIB))
        journal.seal(everything=True)
        as_an_older_one_wrote_it(journal)
        assert len(groups_of(journal)[0]) == 1
        with Reader(tmp_path, on_damage=fail_on_damage) as reader:
            slices = [batch.num_rows for file in reader.files() for batch in lake.read(tmp_path, file)]
            assert len(slices) > 5
            assert max(slices) <= 2 * lake.SLICE_BYTES // MIB
            assert read(reader) == list(range(1, 101))
        assert verify(tmp_path).good


def test_a_subscriber_that_catches_up_may_go_on_anywhere(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        fill(journal, 50, 1, "a", "b", payload=bytes(MIB))
        journal.seal(everything=True)
        as_an_older_one_wrote_it(journal)
        reader = journal.reader
        for after in (0, 17, 3, 49, 50, 3, 48, 0):
            assert catch_up(reader, ">", after) == list(range(after + 1, 51))
        assert catch_up(reader, "b", 9) == list(range(10, 51, 2))


def test_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups outside the numbers or times are not read."""
    clock = Clock()
    with journal_in(tmp_path, clock) as journal:
        for _ in range(60):
            fill(journal, 1, payload=bytes(MIB))
            clock.pass_s(1)
        journal.seal(everything=True)
        read: list[int] = []
        slices = lake.group_slices

        def noted(parquet: Any, group: int, columns: Any = None) -> Any:
            read.append(group)
            return slices(parquet, group, columns)

        monkeypatch.setattr(lake, "group_slices", noted)
        reader = journal.reader
        assert seqs(reader.some([3, 4])) == [3, 4]
        assert seqs(reader.messages(first=58)) == [58, 59, 60]
        now_s = clock.now_ns / NS
        assert seqs(reader.messages(since=now_s - 60, until=now_s - 58)) == [1, 2]
        assert len(read) == 3


def test_nothing_of_a_row_group_of_more_than_2_gib_is_passed_over(tmp_path: Path) -> None:
    """Arrow returns it in two chunks."""
    count = 2200
    with Journal(tmp_path, JournalSettings(seal=False)) as journal:
        fill(journal, 1, payload=bytes(MIB))
        journal.seal(everything=True)
        (file,) = journal.reader.files()
        first = next(lake.read(tmp_path, file))
    path = tmp_path / file.path.replace(f"{1:020d}.parquet", f"{count:020d}.parquet")
    # The same row again and again, but for its number: the table takes no more memory than one.
    table = pa.Table.from_batches([first] * count)
    numbers = pa.chunked_array([pa.array([seq], pa.int64()) for seq in range(1, count + 1)])
    table = table.set_column(table.schema.names.index("seq"), "seq", numbers)
    pq.write_table(table, path, row_group_size=count, compression="zstd", use_dictionary=False)
    (tmp_path / file.path).unlink()
    with Journal(tmp_path, JournalSettings(seal=False)) as journal:
        name = path.relative_to(tmp_path).as_posix()
        size, checksum = path.stat().st_size, lake.checksum_of(path)

        def rename(database: Any) -> None:
            columns = "path = ?, last = ?, rows = ?, bytes = ?, checksum = ?"
            database.execute(f"UPDATE files SET {columns}", (name, count, count, size, checksum))
            database.execute("UPDATE file_topics SET path = ?, last = ?, count = ?", (name, count, count))

        journal.writer.call(rename).result()
        assert len(groups_of(journal)[0]) == 1
        assert catch_up(journal.reader) == list(range(1, count + 1))
    assert verify(tmp_path).good
