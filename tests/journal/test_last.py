"""The last message of a topic: exact wherever it is stored, found by an index, and never an older one instead."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import trunkline as tl
from tests.journal.journals import (
    BadDisk,
    Clock,
    Place,
    fill,
    journal_in,
    journal_of,
    message,
    nothing_more,
    seqs,
    store,
    take,
    tend,
    until,
)
from trunkline.errors import JournalDamaged
from trunkline.journal import Journal, Reader, Retention, lake, last
from trunkline.journal.database import FILE
from trunkline.journal.repair.repair import repair
from trunkline.journal.sealed import File
from trunkline.testing import Simulation


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    with journal_in(tmp_path, clock, seal_rows=100) as journal:
        yield journal


def execute(journal: Journal, sql: str, given: tuple[Any, ...]) -> None:
    journal.writer.call(lambda database: database.execute(sql, given)).result()


def values(messages: Iterable[tl.Message]) -> list[Any]:
    return [each.decode() for each in messages]


def truth(written: list[tl.Message], topic: str, before: int | None = None) -> tl.Message | None:
    fitting = [each for each in written if each.topic == topic and (before is None or each.seq < before)]
    return fitting[-1] if fitting else None


def check(journal: Journal, written: list[tl.Message], *topics: str) -> None:
    """Every query has the right answer, in this reader and in a new one."""
    with Reader(journal.directory) as other:
        for topic in topics:
            assert other.last_of(topic) == journal.reader.last_of(topic) == truth(written, topic)
            for before in range(len(written) + 3):
                assert journal.reader.last_of(topic, before) == truth(written, topic, before), (topic, before)


# Where it is


def test_wherever_it_is(journal: Journal) -> None:
    """In the journal, sealed, some of both, and joined from several files."""
    topics = ("a", "b", "a.b", "nobody's")
    written = fill(journal, 7, 3, "a", "b")
    check(journal, written, *topics)
    journal.seal(everything=True)
    check(journal, written, *topics)
    written += fill(journal, 1, 2, "a.b")
    check(journal, written, *topics)
    for _ in range(8):
        written += fill(journal, 2, 1, "b", "a")
        journal.seal(everything=True)
    check(journal, written, *topics)
    assert journal.tender.join() > 1
    check(journal, written, *topics)


def test_in_a_file_of_many_row_groups(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of them is read for a message: the rest of the file is not needed."""
    monkeypatch.setattr(lake, "GROUP_ROWS", 4)
    monkeypatch.setattr(lake, "SLICE_ROWS", 3)
    written = [*fill(journal, 1, 1, "rare"), *fill(journal, 9, 5, "a", "b")]
    journal.seal(everything=True)
    check(journal, written, "a", "b", "rare")
    read: list[list[int]] = []
    whole = pq.ParquetFile.iter_batches

    def counted(self: Any, *args: Any, row_groups: list[int], **options: Any) -> Any:
        read.append(row_groups)
        return whole(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    assert journal.reader.last_of("rare") == written[0]
    assert read == [[0]]


def test_no_table_is_searched(journal: Journal) -> None:
    """An index leads to the batch and to the file, for one topic and for the next topic of a pattern."""
    fill(journal, 10, 1, "a", "b")
    journal.seal(everything=True)
    for query in (last.HOT, last.SEALED):
        (plan,) = journal.reader.query(f"EXPLAIN QUERY PLAN {query}", ("a", 5))
        assert "SEARCH" in plan[-1], plan
        assert "INDEX" in plan[-1], plan
    for table in ("batches", "file_topics"):
        (plan,) = journal.reader.query(f"EXPLAIN QUERY PLAN {last.NEXT_TOPIC.format(table)}", ("a",))
        assert "SEARCH" in plan[-1], plan
        assert "COVERING INDEX" in plan[-1], plan


def test_a_journal_of_an_earlier_version(tmp_path: Path) -> None:
    """A journal without the index is readable, gets the index when it is opened, and keeps its version."""
    with journal_in(tmp_path) as journal:
        written = fill(journal, 4, 1, "a", "b")
        journal.seal(everything=True)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("DROP INDEX file_topics_by_topic")
        (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    with Reader(tmp_path) as reader:
        assert reader.last_of("a") == truth(written, "a")
    with journal_in(tmp_path) as journal:
        assert journal.reader.last_of("a") == truth(written, "a")
        names = journal.reader.query("SELECT name FROM sqlite_schema WHERE type = 'index'")
        assert ("file_topics_by_topic",) in names
        assert journal.reader.query("PRAGMA user_version") == [(version,)]


def test_the_cursors_that_actors_once_had_are_forgotten(tmp_path: Path) -> None:
    """They are unused, and retention may remove what they kept. Cursors of others stay."""
    cursors = [
        ("state of shop.till", "_state.shop.till"),
        ("state of shop.till", "orders"),
        ("billing", "_state.shop.till"),
        ("state of another", "_state.shop.till"),
    ]
    sql = "INSERT INTO cursors VALUES (?, ?, 0, x'90', 0, 0)"
    for at, row in enumerate(cursors):
        folder = tmp_path / str(at)
        with journal_in(folder) as journal:
            execute(journal, sql, row)
        with journal_in(folder) as journal:
            found = journal.reader.query("SELECT name, pattern FROM cursors")
            assert found == ([] if at == 0 else [row])


# What becomes of it


@pytest.mark.parametrize("where", ["journal", "lake"])
def test_after_retention(tmp_path: Path, clock: Clock, where: str) -> None:
    """Retention removes the oldest first: either the last message is still there, or nothing is."""
    rules = (Retention(topics="few", max_count=1), Retention(topics="old", max_age_s=60))
    with journal_in(tmp_path, clock, retention=rules) as journal:
        written = []
        for _ in range(3):
            written += fill(journal, 2, 1, "few", "old")
            if where == "lake":
                journal.seal(everything=True)
        clock.pass_s(61)
        written += fill(journal, 1, 1, "other")
        journal.tender.retain()
        assert journal.reader.last_of("few") == truth(written, "few")
        assert journal.reader.last_of("old") is None
        assert seqs(journal.reader.messages("few")) == [5]


@pytest.mark.parametrize("where", ["journal", "lake"])
@pytest.mark.parametrize(("topic", "keep_last"), [("_state.shop.till", False), ("a", True)])
def test_retention_may_keep_the_last(tmp_path: Path, clock: Clock, where: str, topic: str, keep_last: bool) -> None:
    """The state of an actor is kept at any age, and so is the last message of any topic if the rule requires it."""
    rule = Retention(max_age_s=60, keep_last=keep_last)
    with journal_in(tmp_path, clock, retention=(rule,)) as journal:
        for _ in range(3):
            fill(journal, 1, 1, topic)
            if where == "lake":
                journal.seal(everything=True)
        clock.pass_s(1000)
        journal.tender.retain()
        assert seqs(journal.reader.messages()) == [3]


def test_replaced_and_gone_while_it_is_read(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is joined and deleted between the index lookup and the reading."""
    written = []
    for _ in range(8):
        written += fill(journal, 1, 1, "a")
        journal.seal(everything=True)
    opened = lake.opened
    joined: list[str] = []

    def late(directory: Path, file: File, **options: Any) -> Any:
        if not joined:
            joined.append(file.path)
            journal.tender.join()
            (journal.directory / file.path).unlink()
        return opened(directory, file, **options)

    with Reader(journal.directory) as reader:
        monkeypatch.setattr(lake, "opened", late)
        assert reader.last_of("a") == written[-1]
    assert joined


# Damage


def damage_batch(journal: Journal, first: int) -> None:
    execute(journal, "UPDATE batches SET body = zeroblob(length(body)) WHERE first = ?", (first,))


def test_a_damaged_batch_is_told_and_nothing_older_is_given(journal: Journal) -> None:
    """Now, when it is in quarantine, and after a repair. A query for an earlier message is answered."""
    written = fill(journal, 3, 2, "a")
    other = fill(journal, 1, 1, "b")
    damage_batch(journal, 5)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="its checksum does not match") as told:
            journal.reader.last_of("a")
        assert (told.value.first, told.value.last) == (5, 6)
    assert journal.reader.query("SELECT first FROM quarantine") == [(5,)]
    assert journal.reader.last_of("a", told.value.first) == written[3]
    assert journal.reader.last_of("b") == other[0]
    journal.seal(everything=True)
    with pytest.raises(JournalDamaged):
        journal.reader.last_of("a")
    journal.close()
    repair(journal.directory)
    journal.open()
    with pytest.raises(JournalDamaged):
        journal.reader.last_of("a")
    (newer,) = store(journal, [[message("a", b"newer")]])
    assert journal.reader.last_of("a") == newer


def test_what_is_damaged_before_the_last_does_not_matter(journal: Journal) -> None:
    """Missing in the journal, or in the middle of a file of the lake. A query for it reports that."""
    written = fill(journal, 4, 2, "a")
    for first in (3, 5):
        damage_batch(journal, first)
        assert journal.reader.last_of("a") == written[7]
    journal.seal(everything=True)
    for before in (None, 9, 8):
        assert journal.reader.last_of("a", before) == written[7 if before != 8 else 6]
    for before, damaged in ((7, 5), (6, 5), (5, 3), (4, 3)):
        with pytest.raises(JournalDamaged, match="in quarantine") as told:
            journal.reader.last_of("a", before)
        assert told.value.first == damaged
    assert journal.reader.last_of("a", 3) == written[1]
    assert journal.reader.last_of_each(">") == (8, [8])
    damage_batch(journal, store(journal, [[message("a")]])[0].seq)
    with pytest.raises(JournalDamaged):
        journal.reader.last_of("a")
    assert journal.reader.last_of_each(">") == (8, [])


@pytest.mark.parametrize("harm", ["gone", "cut", "anywhere"])
def test_a_damaged_file_is_told_and_nothing_older_is_given(journal: Journal, harm: str) -> None:
    """Wherever the damage is: the answer is right, or there is an error."""
    before = fill(journal, 1, 2, "a", payload=b"before")
    journal.seal(everything=True)
    written = fill(journal, 3, 2, "a", "b", payload=bytes(range(256)))
    journal.seal(everything=True)
    path = journal.directory / journal.reader.files()[1].path
    sound = path.read_bytes()
    damaged = 0
    for at in range(0, len(sound), 29) if harm == "anywhere" else (0,):
        match harm:
            case "gone":
                path.unlink()
            case "cut":
                path.write_bytes(sound[: len(sound) // 2])
            case "anywhere":
                path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        told: list[JournalDamaged] = []
        with Reader(journal.directory, on_damage=told.append) as reader:
            found = None
            with suppress(JournalDamaged):
                found = reader.last_of("a")
            assert found == (None if told else truth(written, "a")), at
            assert not told or reader.last_of("a", told[0].first) == before[-1]
        damaged += len(told)
    assert damaged >= (20 if harm == "anywhere" else 1)


# On a bus


async def test_what_was_published_is_seen(simulation: Simulation, tmp_path: Path) -> None:
    """A completed publish counts, durable or recorded. A topic that is not stored is refused by name."""
    place = Place(simulation, tmp_path, slow=True, durable=("orders.>",), recorded=("ticks",))
    async with place.bus() as bus:
        assert await bus.last("orders.eu") is None
        for number in range(10):
            for topic in ("orders.eu", "ticks", "orders.us"):
                await bus.publish(topic, number)
                found = await bus.last(topic)
                assert found is not None
                assert found.decode() == number
            if number % 3 == 0:
                tend(bus, everything=True)
        with pytest.raises(tl.TopicNotStored, match=r"'metrics' is not stored.*orders\.>, ticks.*durable") as refused:
            await bus.last("metrics")
        assert refused.value.stored == ("orders.>", "ticks")
    async with place.bus() as bus:
        found = await bus.last("orders.us")
        assert found is not None
        assert found.decode() == 9


async def test_a_publish_that_fails_is_not_the_last(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        await bus.publish("a", "stored")
        disk = BadDisk(journal_of(bus))
        disk.full = True
        with pytest.raises(tl.NotStored):
            await bus.publish("a", "not stored")
        disk.full = False
        found = await bus.last("a")
        assert found is not None
        assert found.decode() == "stored"


# Starting with it


async def test_a_durable_start_survives_a_crash(simulation: Simulation, tmp_path: Path) -> None:
    """Once it is open, its first messages are kept for it, and nothing older arrives."""
    place = Place(simulation, tmp_path, slow=True)
    async with place.bus() as bus:
        for number in range(4):
            await bus.publish("t.a", f"a{number}")
            await bus.publish("t.b", f"b{number}")
        tend(bus, everything=True)
        async with bus.subscribe("t.*", name="d", durable=True, start="last"):
            crashed = place.crash()
            await bus.publish("t.a", "a4")
    async with crashed.bus() as bus, bus.subscribe("t.*", name="d", durable=True, start="last") as stream:
        await bus.publish("t.a", "a4'")
        assert values(await take(stream, 3)) == ["a3", "b3", "a4'"]
        await nothing_more(stream)
    async with place.bus() as bus, bus.subscribe("t.*", name="d", durable=True, start="last") as stream:
        assert values(await take(stream, 3)) == ["a3", "b3", "a4"]
        await nothing_more(stream)
    async with place.bus() as bus, bus.subscribe("t.*", name="d", durable=True, start="last") as stream:
        await nothing_more(stream)


async def test_the_last_of_many_topics_within_a_small_inbox(simulation: Simulation, tmp_path: Path) -> None:
    """They are read as there is room, in the order of their numbers, some sealed and some not."""
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        for number in range(60):
            await bus.publish(f"t.{number % 20}", str(number))
            if number == 45:
                tend(bus, everything=True)
        async with bus.subscribe("t.*", start="last", capacity=3) as stream:
            publishing = asyncio.create_task(bus.publish("t.0", "after"))
            assert values(await take(stream, 21, ack=False)) == [*map(str, range(40, 60)), "after"]
            await publishing
            await nothing_more(stream)


async def test_a_plain_one_leaves_nothing_behind(simulation: Simulation, tmp_path: Path) -> None:
    """No cursor, so retention does not wait. Untaken messages are dropped, taken ones are recorded."""
    place = Place(simulation, tmp_path, slow=True)
    async with place.bus() as bus:
        ids = [await bus.publish("a", str(number)) for number in range(4)]
        async with bus.subscribe("a", start=2, name="plain") as stream:
            assert not stream.durable
            assert values(await take(stream, 2, ack=False)) == ["1", "2"]
            await until(lambda: stream.depth == 1)
        assert bus.accounts()[""].dropped == 1
        await bus.flush()
        assert journal_of(bus).reader.query("SELECT * FROM cursors") == []
        fates = [[(each.subscriber, each.fate) for each in (await bus.explain(each)).outcomes] for each in ids]
        assert fates == [
            [],
            [("plain", tl.Fate.DELIVERED)],
            [("plain", tl.Fate.DELIVERED)],
            [("plain", tl.Fate.DROPPED)],
        ]
    async with place.bus() as bus, bus.subscribe("a", start="last", name="plain") as stream:
        assert values(await take(stream, 1, ack=False)) == ["3"]
        assert [each.fate for each in (await bus.explain(ids[1])).outcomes] == [tl.Fate.DELIVERED]


async def test_a_handler_may_start_with_the_last(simulation: Simulation, tmp_path: Path) -> None:
    """It fails once on it, and gets it again. Publishers do not wait for it, however slow it is."""
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        await bus.publish("settings", 1)
        await bus.publish("settings", 2)
        handled: list[int] = []

        @bus.on("settings", start="last", retry=tl.Retry(attempts=2, delay_s=1), capacity=1)
        async def apply(number: int) -> None:
            await asyncio.sleep(10)
            handled.append(number)
            if len(handled) == 1:
                raise ValueError("not yet")

        await until(lambda: bool(handled))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in (3, 4, 5):
            await bus.publish("settings", number)
        assert loop.time() - began < 10
        await until(lambda: len(handled) == 5, 1000)
        assert sorted(handled) == [2, 2, 3, 4, 5]


async def test_where_nothing_is_stored_there_is_no_start(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, durable=("orders.>",)).bus() as bus:
        with pytest.raises(tl.InvalidSettings, match="'metrics' is not kept by the journal"):
            await bus.subscribe("metrics", start="last").open()
        with pytest.raises(tl.InvalidSettings, match="must be durable"):
            bus.subscribe("orders.eu", start="last", group="g")
        with pytest.raises(tl.InvalidSettings, match='the "last" message of each topic'):
            await bus.subscribe("orders.eu", start="yesterday").open()
    async with tl.connect() as bus:
        with pytest.raises(tl.Unsupported, match="reading stored messages"):
            bus.subscribe("t", start="last")
        with pytest.raises(tl.Unsupported, match="reading stored messages"):
            bus.subscribe("t", start="beginning")
        with pytest.raises(tl.Unsupported, match="reading stored messages"):
            await bus.last("t")


def test_from_a_thread(tmp_path: Path) -> None:
    with tl.connect_blocking("memory:", journal=tmp_path / "journal") as bus:
        assert bus.last("a") is None
        for number in range(3):
            bus.publish("a", number)
        found = bus.last("a")
        assert found is not None
        before = bus.last("a", before=found.seq)
        assert before is not None
        assert (found.decode(), before.decode()) == (2, 1)
        with bus.subscribe("a", start="last") as stream:
            received = stream.recv(30)
            assert received is not None
            assert received.decode() == 2
