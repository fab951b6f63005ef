"""The lake: its files, their names, and their lifetime."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trunkline as tl
from tests.journal.journals import NS, BadDisk, Clock, fail_on_damage, fill, journal_in, message, seqs, store
from trunkline.errors import JournalDamaged, NotStored
from trunkline.journal import Journal, Reader, lake, layout
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.sealed import File

NOON_NS = int(datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()) * NS
DAY_S = 86_400


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON_NS)


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    with journal_in(tmp_path, clock, seal_rows=10, seal_age_s=60, replaced_s=100) as journal:
        yield journal


def name(first: int, last: int, day: str = "2026-11-16", kind: str = "messages", revision: str = "") -> str:
    return f"{kind}/date={day}/{first:020d}-{last:020d}{revision}.parquet"


def there(journal: Journal) -> list[str]:
    """Everything in the lake's folders, hidden or not."""
    folders = [*journal.directory.glob("messages/*/*"), *journal.directory.glob("fates/*/*")]
    return sorted(path.relative_to(journal.directory).as_posix() for path in folders)


def counting(journal: Journal, kind: str = "messages") -> list[str]:
    return [file.path for file in journal.reader.files(kind)]


# Sealing


def test_a_file_is_named_by_its_numbers_and_its_day(journal: Journal) -> None:
    written = fill(journal, 3, 2, "a", "b")
    assert journal.seal(everything=True) == 6
    assert there(journal) == counting(journal) == [name(1, 6)]
    (file,) = journal.reader.files()
    path = journal.directory / file.path
    assert (file.kind, file.first, file.last, file.rows, file.layout) == ("messages", 1, 6, 6, layout.LAYOUT)
    assert (file.bytes, file.day) == (path.stat().st_size, "2026-11-16")
    assert (file.since_ns, file.until_ns) == (NOON_NS, NOON_NS)
    assert (file.at_ns, file.until_at_ns) == (NOON_NS, NOON_NS)
    assert journal.reader.query("SELECT count(*) FROM batches") == [(0,)]
    assert list(journal.reader.messages()) == written


def test_others_can_read_a_file_without_us(journal: Journal) -> None:
    store(journal, [[message("a", b"1", id="x", headers={"k": "v"}, type=tl.MessageType.REQUEST, request_id="r")]])
    journal.seal(everything=True)
    table = pq.read_table(journal.directory / counting(journal)[0], partitioning=None)
    assert table.schema.metadata[layout.LAYOUT_KEY] == str(layout.LAYOUT).encode()
    (row,) = table.to_pylist()
    assert (row["seq"], row["id"], row["topic"], row["payload"], row["type"]) == (1, "x", "a", b"1", "request")
    assert (row["headers"], row["accepted"]) == ([("k", "v")], datetime(2026, 11, 16, 12, tzinfo=UTC))


def test_a_stretch_is_sealed_by_rows_bytes_or_age(tmp_path: Path, clock: Clock) -> None:
    settings: dict[str, Any] = {"seal_rows": 10, "seal_bytes": 200_000, "seal_age_s": 60}
    with journal_in(tmp_path, clock, **settings) as journal:
        fill(journal, 3, 3)
        assert journal.seal() == 0
        fill(journal, 1, 3)
        assert journal.seal() == 12
        fill(journal, 1, 2)
        clock.pass_s(59)
        assert journal.seal() == 0
        clock.pass_s(1)
        assert journal.seal() == 2
        fill(journal, 2, 2, payload=b"x" * 60_000)
    # What is in SQLite's own log may be seen late.
    with journal_in(tmp_path, clock, **settings) as journal:
        assert journal.seal() == 4
        assert counting(journal) == [name(1, 12), name(13, 14), name(15, 18)]
        assert journal.seal(everything=True) == 0


def test_a_day_has_its_own_folder(journal: Journal, clock: Clock) -> None:
    """A range that crosses midnight becomes two files, and each row is in the file of its day of acceptance."""
    clock.now_ns = NOON_NS + DAY_S * NS // 2 - 1
    written = fill(journal, 2, 2)
    clock.now_ns += 1
    written += fill(journal, 2, 2)
    clock.pass_s(DAY_S)
    written += fill(journal, 1, 2)
    journal.seal(everything=True)
    assert there(journal) == [name(1, 4), name(5, 8, "2026-11-17"), name(9, 10, "2026-11-18")]
    assert list(journal.reader.messages()) == written
    for file in journal.reader.files():
        for batch in pq.ParquetFile(journal.directory / file.path).iter_batches(columns=["accepted"]):
            assert {f"{at:%Y-%m-%d}" for at in batch.column("accepted").to_pylist()} == {file.day}


def test_a_clock_that_goes_back_over_midnight_brings_no_disorder(journal: Journal, clock: Clock) -> None:
    clock.now_ns = NOON_NS + DAY_S * NS // 2
    fill(journal, 1, 2)
    clock.pass_s(-3600)
    fill(journal, 1, 2)
    journal.seal(everything=True)
    assert there(journal) == [name(1, 4, "2026-11-17")]


def test_a_day_that_is_over_is_not_sealed_before_its_time(journal: Journal, clock: Clock) -> None:
    clock.now_ns = NOON_NS + (DAY_S // 2 - 10) * NS
    fill(journal, 1)
    clock.pass_s(20)
    fill(journal, 1)
    assert journal.seal() == 0
    clock.pass_s(40)
    assert journal.seal() == 1
    assert journal.seal() == 0


def test_fates_are_sealed_by_day_too(journal: Journal, clock: Clock) -> None:
    (one,) = fill(journal, 1)
    for _ in range(2):
        journal.ledger.fate("x", "a", tl.Fate.DROPPED, 1, 1, 1, "why", clock.now_ns)
        journal.intake.flush()
        clock.pass_s(DAY_S)
    journal.seal(everything=True)
    assert counting(journal, "fates") == [name(1, 1, kind="fates"), name(2, 2, "2026-11-17", kind="fates")]
    assert [fate.at_ns for fate in journal.reader.fates_of(one)] == [NOON_NS, NOON_NS + DAY_S * NS]


def test_if_the_swap_fails_nothing_has_happened(journal: Journal, clock: Clock) -> None:
    written = fill(journal, 3, 2)
    disk = BadDisk(journal)
    disk.full = True
    with pytest.raises(NotStored):
        journal.seal(everything=True)
    assert there(journal) == counting(journal) == []
    disk.full = False
    assert list(journal.reader.messages()) == written
    journal.seal(everything=True)
    assert there(journal) == [name(1, 6)]
    assert list(journal.reader.messages()) == written


def test_a_file_that_cannot_be_written_changes_nothing(journal: Journal) -> None:
    written = fill(journal, 3, 2)
    (journal.directory / "messages").write_text("in the way")
    with pytest.raises((JournalUnusable, OSError)):
        journal.seal(everything=True)
    (journal.directory / "messages").unlink()
    assert list(journal.reader.messages()) == written
    assert journal.seal(everything=True) == 6


@pytest.mark.parametrize(
    "odd",
    [
        {"timestamp_ns": 2**63 - 1},
        {"timestamp_ns": 0},
        {"attempts": 2**40},
        {"payload": b"\x00" * 100_000},
        {"id": "\x00", "sender": "\U0001f600", "headers": {"": ""}},
    ],
    ids=["the last time", "no time", "attempts", "zeros", "texts"],
)
def test_no_message_that_was_accepted_keeps_others_from_the_lake(journal: Journal, odd: dict[str, Any]) -> None:
    """A batch that cannot be sealed would keep everything after it in the journal for ever."""
    payload = odd.pop("payload", b"")
    written = store(journal, [[message("a")], [message("a", payload, **odd)], [message("a")]])
    assert list(journal.reader.messages()) == written
    assert journal.seal(everything=True) == 3
    assert list(journal.reader.messages()) == written


# Joining


def test_small_files_are_joined(journal: Journal, clock: Clock) -> None:
    written: list[tl.Message] = []
    for _ in range(3):
        written += fill(journal, 1, 2, "a", "b")
        journal.seal(everything=True)
    assert journal.tender.join() == 3
    assert counting(journal) == [name(1, 6)]
    assert list(journal.reader.messages()) == written
    assert journal.tender.join() == 0


def test_few_small_files_are_left_alone(journal: Journal) -> None:
    for _ in range(2):
        fill(journal, 1, 2)
        journal.seal(everything=True)
    assert journal.tender.join() == 0
    assert counting(journal) == [name(1, 2), name(3, 4)]


def test_many_files_are_joined_however_small(tmp_path: Path, clock: Clock) -> None:
    with journal_in(tmp_path, clock, seal_rows=1000) as journal:
        for count in range(1, 9):
            assert journal.tender.join() == 0, f"{count} small files"
            fill(journal, 1, 1)
            journal.seal(everything=True)
        assert journal.tender.join() == 8
        assert counting(journal) == [name(1, 8)]


def test_days_and_large_files_are_not_joined(journal: Journal, clock: Clock) -> None:
    for count in (3, 8, 3, 3):
        fill(journal, 1, count)
        journal.seal(everything=True)
    clock.pass_s(DAY_S)
    fill(journal, 1, 3)
    journal.seal(everything=True)
    assert journal.tender.join() == 2
    assert counting(journal) == [name(1, 3), name(4, 11), name(12, 17), name(18, 20, "2026-11-17")]


def test_fates_are_joined_too(journal: Journal, clock: Clock) -> None:
    (one,) = fill(journal, 1)
    for number in range(6):
        journal.ledger.fate("x", "a", tl.Fate.DROPPED, 1, 1, 1, str(number), clock.now_ns)
        journal.intake.flush()
        journal.seal(everything=True)
    assert journal.tender.join() == 6
    assert counting(journal, "fates") == [name(1, 6, kind="fates")]
    assert [fate.reason for fate in journal.reader.fates_of(one)] == list("012345")


def test_a_replaced_file_stays_for_those_who_read_it(journal: Journal, clock: Clock) -> None:
    for _ in range(3):
        fill(journal, 1, 2)
        journal.seal(everything=True)
    old = there(journal)
    with Reader(journal.directory, on_damage=fail_on_damage) as reader:
        reading = reader.messages()
        next(reading)
        journal.tender.join()
        clock.pass_s(99)
        assert journal.tender.forget_replaced() == 0
        assert there(journal) == sorted([*old, name(1, 6)])
        clock.pass_s(1)
        assert journal.tender.forget_replaced() == 3
        assert there(journal) == counting(journal) == [name(1, 6)]
        assert seqs(reading) == [2, 3, 4, 5, 6]
    assert journal.tender.forget_replaced() == 0


def test_a_replaced_file_is_remembered_over_a_restart(tmp_path: Path, clock: Clock) -> None:
    settings: dict[str, Any] = {"seal_rows": 10, "replaced_s": 100}
    with journal_in(tmp_path, clock, **settings) as journal:
        for _ in range(3):
            fill(journal, 1, 2)
            journal.seal(everything=True)
        journal.tender.join()
    with journal_in(tmp_path, clock, **settings) as journal:
        assert len(there(journal)) == 4
        clock.pass_s(100)
        journal.tender.tend()
        assert there(journal) == [name(1, 6)]


def test_if_joining_fails_the_old_files_count(journal: Journal) -> None:
    written: list[tl.Message] = []
    for _ in range(3):
        written += fill(journal, 1, 2)
        journal.seal(everything=True)
    before = there(journal)
    disk = BadDisk(journal)
    disk.full = True
    with pytest.raises(NotStored):
        journal.tender.join()
    assert there(journal) == counting(journal) == before
    disk.full = False
    assert list(journal.reader.messages()) == written


# Layouts


def rewrite(journal: Journal, change: Callable[[pa.Table], pa.Table]) -> File:
    """Rewrite the one sealed file, as another version of Trunkline would have written it."""
    (file,) = journal.reader.files()
    path = journal.directory / file.path
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)
    checksum = lake.checksum_of(path)
    journal.writer.call(lambda database: database.execute("UPDATE files SET checksum = ?", (checksum,)))
    return file


def newer(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({layout.LAYOUT_KEY: str(layout.LAYOUT + 1).encode()})


def test_a_file_of_a_newer_layout_is_refused(journal: Journal) -> None:
    (written,) = fill(journal, 1)
    journal.seal(everything=True)
    file = rewrite(journal, newer)
    told: list[JournalDamaged] = []
    with Reader(journal.directory, on_damage=told.append) as reader:
        for ask in (
            lambda: list(reader.messages()),
            lambda: list(reader.arrow()),
            lambda: reader.find(written.id),
            lambda: reader.some([1]),
            lambda: reader.some_after("a", 0, 10),
        ):
            with pytest.raises(
                JournalUnusable, match=f"{file.path} has layout 2, this Trunkline supports up to 1: upgrade Trunkline"
            ):
                ask()
    assert told == []


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.writer._database.execute("PRAGMA user_version = 99")  # type: ignore[union-attr]  # it is open
    for open_it in (lambda: journal_in(tmp_path), lambda: Reader(tmp_path)):
        with pytest.raises(JournalUnusable, match=r"version 99.*upgrade Trunkline"):
            open_it()


@pytest.mark.parametrize("column", ["trace", "headers", "schema", "recipient"])
def test_what_an_older_file_lacks_is_nothing(journal: Journal, column: str) -> None:
    full: dict[str, Any] = {"trace": "t", "schema": "s", "recipient": "r", "headers": {"k": "v"}, "sender": "me"}
    written = store(journal, [[message("a", b"1", **full), message("a", b"2", **full)]])
    journal.seal(everything=True)
    rewrite(journal, lambda table: table.drop_columns([column]))
    lacking = [tl.Message(**{**as_fields(each), column: None}) for each in written]
    assert list(journal.reader.messages()) == lacking
    assert journal.reader.some_after("a", 0, 10) == (lacking, 2)
    (batch,) = journal.reader.arrow()
    assert batch.schema.equals(layout.MESSAGES)
    assert batch.column(column).null_count == 2
    assert [batch.schema.names for batch in journal.reader.arrow(columns=[column])] == [[column]]


@pytest.mark.parametrize("column", ["encoding", "priority", "type"])
def test_what_an_older_file_lacks_has_its_default(journal: Journal, column: str) -> None:
    """A message with None in a required field would fail at its receiver."""
    written = store(journal, [[message("a", b"1")]])
    journal.seal(everything=True)
    rewrite(journal, lambda table: table.drop_columns([column]))
    assert list(journal.reader.messages()) == written


def as_fields(message: tl.Message) -> dict[str, Any]:
    return {field: getattr(message, field) for field in tl.Message.__struct_fields__}


def test_an_older_file_can_be_joined(journal: Journal) -> None:
    fill(journal, 1, 3)
    journal.seal(everything=True)
    rewrite(journal, lambda table: table.drop_columns(["trace"]))
    fill(journal, 1, 3)
    journal.seal(everything=True)
    assert journal.tender.join() == 2
    assert seqs(journal.reader.messages()) == list(range(1, 7))


# Damage


@pytest.mark.parametrize("harm", ["cut", "gone", "changed"])
def test_a_damaged_file_is_told_and_left_out(journal: Journal, harm: str) -> None:
    fill(journal, 1, 3, payload=b"first" * 50)
    journal.seal(everything=True)
    (file,) = journal.reader.files()
    fill(journal, 1, 3)
    path = journal.directory / file.path
    content = path.read_bytes()
    match harm:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "gone":
            path.unlink()
        case "changed":
            # In the header of the first page.
            path.write_bytes(changed(content, 20))
    told: list[JournalDamaged] = []
    with Reader(journal.directory, on_damage=told.append) as reader:
        assert seqs(reader.messages()) == [4, 5, 6]
        assert [(damage.first, damage.last, damage.where) for damage in told] == [(1, 3, file.path)]
        assert reader.some_after("a", 0, 10) == ([], 3)
        assert seqs(reader.some([2, 4])) == [4]


def changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.long)])
def test_a_changed_byte_of_a_file_is_told_or_does_no_harm(journal: Journal, stride: int) -> None:
    """Also in its footer, which Parquet itself does not check: never another message, never a foreign error."""
    written = fill(journal, 1, 3, payload=b"first" * 50)
    journal.seal(everything=True)
    (file,) = journal.reader.files()
    path = journal.directory / file.path
    content = path.read_bytes()
    wrong: list[str] = []
    for at in range(0, len(content), stride):
        path.write_bytes(changed(content, at))
        told: list[JournalDamaged] = []
        with Reader(journal.directory, on_damage=told.append) as reader:
            try:
                found = list(reader.messages())
            except Exception as error:
                wrong.append(f"byte {at}: {error!r}")
                continue
        if not told and found != written:
            wrong.append(f"byte {at}: other messages")
    assert not wrong, f"{len(wrong)} of {len(content) // stride}: {wrong[0]}"


# What a crash leaves


def test_leftovers_of_a_crash_are_cleared_away(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with journal_in(tmp_path, clock) as journal:
        written = fill(journal, 2, 2)
        journal.seal(everything=True)
    (kept,) = tmp_path.glob("messages/*/*")
    unrecorded = [
        kept.with_name(f"{1:020d}-{4:020d}-2.parquet"),
        kept.with_name(f".{os.getpid()}.tmp"),
        kept.with_name(".99999.tmp"),
    ]
    # What is nowhere else may be all there is of it: a person has to look.
    alone = [
        kept.with_name(f"{5:020d}-{9:020d}.parquet"),
        tmp_path / "fates" / "date=2026-11-15" / f"{1:020d}-{2:020d}.parquet",
    ]
    own = [kept.with_name("notes.txt"), kept.with_name("copy.parquet"), tmp_path / "mine.parquet", *alone]
    for path in (*unrecorded, *own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
    with caplog.at_level(logging.WARNING), journal_in(tmp_path, clock) as journal:
        assert list(journal.reader.messages()) == written
    assert [path for path in unrecorded if path.exists()] == []
    assert [path for path in (kept, *own) if not path.exists()] == []
    assert len([record for record in caplog.records if "removed" in record.getMessage()]) == len(unrecorded)
    assert len([record for record in caplog.records if "verify --repair" in record.getMessage()]) == len(alone)


def test_a_reader_leaves_leftovers_alone(tmp_path: Path, clock: Clock) -> None:
    with journal_in(tmp_path, clock) as journal:
        fill(journal, 1)
        journal.seal(everything=True)
    (kept,) = tmp_path.glob("messages/*/*")
    leftover = kept.with_name(f"{2:020d}-{9:020d}.parquet")
    leftover.write_bytes(b"")
    with Reader(tmp_path, on_damage=fail_on_damage) as reader:
        assert seqs(reader.messages()) == [1]
    assert leftover.exists()


# Numbers


def test_numbers_go_on_after_everything_was_sealed(tmp_path: Path, clock: Clock) -> None:
    with journal_in(tmp_path, clock) as journal:
        fill(journal, 2, 2)
        journal.seal(everything=True)
    with journal_in(tmp_path, clock) as journal:
        assert seqs(fill(journal, 1)) == [5]
