"""The memory of a journal is bounded in bytes, however much is stored and however many subscribers have left."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import astuple

import trunkline as tl
from tests.journal.journals import Clock, Place, journal_in, journal_of, seqs, take
from trunkline.journal import Journal, JournalSettings, Retention, database, lake, ledger
from trunkline.journal.due import Stretch, next_fates, next_messages, small_runs
from trunkline.journal.ledger import FATE, JournalLedger
from trunkline.journal.reader import MAX_CHECKED, Reader
from trunkline.journal.retention import plan
from trunkline.journal.sealed import FILE_COLUMNS, File
from trunkline.journal.writer import Database
from trunkline.settings import History
from trunkline.testing import Simulation

KIB = 1024
MIB = 1024 * KIB
ROWS = 20_000


@contextmanager
def at_most(limit: int, *, peak: bool) -> Iterator[None]:
    """The block may allocate at most this many bytes: at any moment, or still at the end."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        gc.collect()
        left, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    taken = highest if peak else left
    assert taken <= limit, f"{taken:,} bytes"


def file(number: int, rows: int = 100) -> File:
    first = number * rows + 1
    path = f"messages/date=2026-11-17/{first:020d}-{first + rows - 1:020d}.parquet"
    return File(path, "messages", first, first + rows - 1, rows, 10_000, 1, f"{number}", 1, 2, 1, 2, 7)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """Twenty thousand batches and as many fates that are not sealed, and as many sealed files of a day each."""
    clock = Clock()
    with journal_in(
        tmp_path_factory.mktemp("full"), clock, retention=(Retention(topics="t.>", max_age_s=3600.0),)
    ) as journal:
        low = ROWS * 1000
        batches = [(low + row, low + row, f"t.{row % 100}", clock.now_ns, 1, 1, 1, b"x") for row in range(ROWS)]
        fates = [("s", "t.>", "delivered", row, row, 1, "", clock.now_ns) for row in range(ROWS)]
        files = [file(number) for number in range(ROWS)]

        def fill(connection: Database) -> None:
            connection.executemany("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batches)
            connection.executemany(FATE, fates)
            marks = ", ".join("?" * len(File.__struct_fields__))
            connection.executemany(f"INSERT INTO files ({FILE_COLUMNS}) VALUES ({marks})", map(astuple, files))
            connection.executemany(
                "INSERT INTO file_topics VALUES (?, 't.1', ?, ?, ?, 1000, ?)",
                [(each.path, each.first, each.last, each.rows, clock.now_ns) for each in files],
            )

        journal.writer.call(fill).result()
        yield journal


def next_stretch(
    find: Callable[[Reader, JournalSettings, int, bool], Stretch | None], journal: Journal
) -> tuple[int, int]:
    stretch = find(journal.reader, JournalSettings(seal_rows=10 * ROWS), journal.world.time_ns(), True)
    assert stretch is not None
    return stretch.last - stretch.first + 1, stretch.messages


LOOKS: dict[str, Callable[[Journal], object]] = {
    "messages to seal": lambda journal: next_stretch(next_messages, journal),
    "fates to seal": lambda journal: next_stretch(next_fates, journal),
    "files to join": lambda journal: list(small_runs(journal.reader.sized_files("messages"), 1000, MIB)),
    "what retention removes": lambda journal: plan(
        journal.reader, journal.retention, journal.world.time_ns(), [], 10**12
    ),
    "how many lie beyond a number": lambda journal: journal.reader.count("t.*", 0),
    "the last before a point in time": lambda journal: journal.reader.last_before(0),
    "whether a file counts": lambda journal: journal.reader.counts(file(7)),
    "files of some numbers": lambda journal: journal.reader.heads("messages", 1, 1000),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_takes_little_memory_however_much_there_is(full: Journal, look: str) -> None:
    found = LOOKS[look](full)
    with at_most(100 * KIB, peak=True):
        assert LOOKS[look](full) == found


def test_a_reader_remembers_the_last_files_that_it_has_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(lake, "check", lambda directory, file: checked.append(file.path))
    with journal_in(tmp_path) as journal:
        reader = journal.reader
        with at_most(MAX_CHECKED * 500, peak=False):
            for number in range(3 * MAX_CHECKED):
                reader.check(file(number))
            checked.clear()
        reader.check(file(3 * MAX_CHECKED - 1))
        assert checked == []
        reader.check(file(0))
        assert checked == [file(0).path]


def test_a_log_is_lengthened_in_small_pieces(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        log = tmp_path / f"{database.FILE}-wal"
        before = log.stat().st_size
        with at_most(MIB, peak=True):
            journal.writer.call(lambda connection: database.lengthen_log(connection, tmp_path)).result()
        assert before < log.stat().st_size == database.WAL_PAGES * (database.PAGE_BYTES + 24)


def test_a_ledger_remembers_a_bounded_number_of_topics_and_patterns() -> None:
    for look, text in ((JournalLedger.keeps_of, "{:0250d}.*"), (JournalLedger.keeps, "{:0255d}")):
        told = JournalLedger(JournalSettings(), tl.World(), lambda: None)
        with at_most(5 * MIB, peak=False):
            for number in range(3 * ledger.MAX_KNOWN_TOPICS):
                assert look(told, text.format(number))


async def test_a_durable_subscription_that_nobody_reads_holds_no_messages(
    simulation: Simulation, tmp_path: Path
) -> None:
    count, size = 400, 20 * KIB
    place = Place(simulation, tmp_path)
    async with place.bus(history=History(enabled=False)) as bus:
        async with bus.subscribe("a", durable=True, name="x") as stream:
            await take(stream, 0)
        for number in range(count):
            await bus.publish("a", bytes(size), correlation_id=f"{number}")
        with at_most(MIB, peak=False):
            async with bus.subscribe("a", durable=True, name="x") as stream:
                first = await take(stream, 3)
                # Taken, and not acknowledged: one of them in between.
                held = await take(stream, 2, ack=False)
                later = await take(stream, 2)
        assert seqs([*first, *held, *later]) == sorted(seqs([*first, *held, *later]))
        async with bus.subscribe("a", durable=True, name="x") as stream:
            rest = await take(stream, count - 5)
            assert seqs(rest)[:2] == seqs(held)
            assert len({*seqs(first), *seqs(later), *seqs(rest)}) == count
            assert not journal_of(bus).cursors["x"].out


async def test_what_failed_keeps_its_attempts_while_nobody_reads(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        again = tl.Retry(attempts=3, delay_s=5, jitter=0)
        async with bus.subscribe("a", durable=True, name="x", retry=again) as stream:
            await bus.publish_many("a", [b"fails", b"waits", b"done"])
            fails, _, done = await take(stream, 3, ack=False)
            stream.nack(fails, "no")
            stream.ack(done)
        async with bus.subscribe("a", durable=True, name="x", retry=again) as stream:
            began = asyncio.get_running_loop().time()
            (waits,) = await take(stream, 1)
            assert waits.payload == b"waits"
            (again_here,) = await take(stream, 1)
            assert (again_here.payload, again_here.attempts) == (b"fails", 1)
            assert asyncio.get_running_loop().time() - began >= 4, "it waits for its next attempt"


@pytest.mark.parametrize("members", [1, 3])
async def test_subscribers_of_a_durable_subscription_hold_a_bounded_number_of_bytes(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: int
) -> None:
    count, size = 60, 100 * KIB
    monkeypatch.setattr("trunkline.journal.members.MAX_LARGE_BYTES", MIB)
    async with Place(simulation, tmp_path).bus(history=History(enabled=False)) as bus:
        async with AsyncExitStack() as streams:
            together = [
                await streams.enter_async_context(
                    bus.subscribe("a", durable=True, group="g", name=f"{number}", retry=tl.Retry(attempts=2, delay_s=1))
                )
                for number in range(members)
            ]
            for _ in range(count):
                await bus.publish("a", bytes(size))
            await asyncio.sleep(10)
            assert all(MIB <= stream.depth * size < MIB + size for stream in together)
            # One fails once, one always fails, one is given back by a member that leaves.
            failing, dying, *_ = await take(together[0], 3, ack=False)
            together[0].nack(failing, "once")
            together[0].reject(dying, "for good")
            got = [failing.seq, dying.seq]
            await together.pop().aclose() if members > 1 else None
            while len(set(got)) < count:
                for stream in together:
                    while stream.depth:
                        message = stream.try_recv()
                        stream.ack(message)
                        got.append(message.seq)
                    await asyncio.sleep(0.1)
                assert all(stream.depth * size < MIB + size for stream in together)
            assert bus.stats().account.balanced
        async with bus.subscribe("a", durable=True, group="g") as stream:
            await take(stream, 0)
            await bus.publish("a", bytes(size))
            assert len(await take(stream, 1)) == 1


async def test_a_message_larger_than_the_limit_reaches_a_durable_subscription(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.journal.members.MAX_LARGE_BYTES", 10 * KIB)
    async with Place(simulation, tmp_path).bus() as bus, bus.subscribe("a", durable=True, name="x") as stream:
        for size in (20 * KIB, 10, 30 * KIB):
            await bus.publish("a", bytes(size))
        assert [len(message.payload) for message in await take(stream, 3)] == [20 * KIB, 10, 30 * KIB]
