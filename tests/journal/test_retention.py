"""Retention: messages beyond age, size or count are removed, and unread ones only if the rule allows it."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import (
    BadDisk,
    Clock,
    Place,
    broker_of,
    fill,
    journal_in,
    journal_of,
    seqs,
    take,
    tend,
    texts,
    until,
)
from trunkline.errors import InvalidSettings, InvalidTopic
from trunkline.journal import Journal, JournalSettings, Retention
from trunkline.journal.cursor import pack
from trunkline.journal.errors import JournalUnusable
from trunkline.testing import Simulation


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["journal", "lake"])
def where(request: pytest.FixtureRequest) -> str:
    """Whether the removed messages are still in the journal, or sealed."""
    return str(request.param)


def write(journal: Journal, where: str, rows: int, *topics: str, payload: bytes = b"x") -> list[tl.Message]:
    """Rows of two messages; in the lake, a file for each."""
    if where == "journal":
        return fill(journal, rows, 2, *topics, payload=payload)
    written: list[tl.Message] = []
    for row in range(rows):
        written += fill(journal, 1, 2, topics[row % len(topics)] if topics else "a", payload=payload)
        journal.seal(everything=True)
    return written


def left(journal: Journal, pattern: str = ">") -> list[int]:
    return seqs(journal.reader.messages(pattern))


def set_cursor(journal: Journal, name: str, pattern: str, high: int, pending: list[int] | None = None) -> None:
    """A durable subscription without a subscriber."""
    journal.writer.call(
        lambda database: database.execute(
            "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?, 0, 0)", (name, pattern, high, pack(pending or []))
        )
    )


# How much is kept


def test_by_age(tmp_path: Path, clock: Clock, where: str) -> None:
    with journal_in(tmp_path, clock, retention=(Retention(max_age_s=60),)) as journal:
        for _ in range(3):
            write(journal, where, 1)
            clock.pass_s(30)
        # Of 90, 60 and 30 s.
        (removed,) = journal.tender.retain()
        assert (removed.first, removed.last, removed.count) == (1, 2, 2)
        assert left(journal) == [3, 4, 5, 6]
        assert journal.tender.retain() == []
        clock.pass_s(0.001)
        assert seqs_of(journal.tender.retain()) == [(3, 4)]
        clock.pass_s(60)
        assert seqs_of(journal.tender.retain()) == [(5, 6)]
        assert left(journal) == []


def seqs_of(removes: list[Any]) -> list[tuple[int, int]]:
    return [(remove.first, remove.last) for remove in removes]


def test_by_count(tmp_path: Path, where: str) -> None:
    with journal_in(tmp_path, retention=(Retention(max_count=5),)) as journal:
        write(journal, where, 6)
        removes = journal.tender.retain()
        assert seqs_of(removes) == [(1, 2), (3, 4), (5, 6)]
        assert {remove.why for remove in removes} == {"more than max_count (5)"}
        # Whole pieces only: what stays is at least as much as is asked for.
        assert left(journal) == [7, 8, 9, 10, 11, 12]


def test_by_bytes(tmp_path: Path, where: str) -> None:
    with journal_in(tmp_path, retention=(Retention(max_bytes=4500),)) as journal:
        write(journal, where, 6, payload=b"x" * 1000)
        removes = journal.tender.retain()
        assert {remove.why for remove in removes} == {"more than max_bytes (4500)"}
        assert left(journal) == [7, 8, 9, 10, 11, 12]


def test_no_limit_keeps_everything(tmp_path: Path, clock: Clock, where: str) -> None:
    with journal_in(tmp_path, clock, retention=(Retention(topics="b", max_count=1),)) as journal:
        write(journal, where, 5, "a")
        clock.pass_s(1e6)
        assert journal.tender.retain() == []
        assert len(left(journal)) == 10


def test_the_first_rule_that_matches_counts(tmp_path: Path, where: str) -> None:
    rules = (
        Retention(topics="log.keep"),
        Retention(topics="log.*", max_count=2),
        Retention(topics=">", max_count=4),
    )
    with journal_in(tmp_path, retention=rules) as journal:
        write(journal, where, 12, "log.keep", "log.x", "other")
        journal.tender.retain()
        # Each topic is counted for itself.
        assert {topic: len(left(journal, topic)) for topic in ("log.keep", "log.x", "other")} == {
            "log.keep": 8,
            "log.x": 2,
            "other": 4,
        }


def test_a_file_keeps_the_topics_that_stay(tmp_path: Path, clock: Clock) -> None:
    with journal_in(tmp_path, clock, retention=(Retention(topics="b", max_age_s=1),), replaced_s=10) as journal:
        written = fill(journal, 6, 2, "a", "b")
        journal.seal(everything=True)
        clock.pass_s(5)
        (removed,) = journal.tender.retain()
        assert (removed.topic, removed.count) == ("b", 6)
        assert left(journal) == [each.seq for each in written if each.topic == "a"]
        (file,) = journal.reader.files()
        assert (file.rows, file.path.endswith("-2.parquet") or file.last == 10) == (6, True)
        assert journal.tender.retain() == []
        assert len(list(tmp_path.glob("messages/*/*"))) == 2
        clock.pass_s(10)
        assert journal.tender.forget_replaced() == 1
        assert len(list(tmp_path.glob("messages/*/*"))) == 1


def test_across_journal_and_lake(tmp_path: Path) -> None:
    with journal_in(tmp_path, retention=(Retention(max_count=6),)) as journal:
        write(journal, "lake", 3)
        write(journal, "journal", 2)
        journal.tender.retain()
        assert left(journal) == [5, 6, 7, 8, 9, 10]


def test_what_was_removed_is_on_record(tmp_path: Path, clock: Clock, where: str) -> None:
    with journal_in(tmp_path, clock, retention=(Retention(max_count=2),)) as journal:
        write(journal, where, 4)
        journal.tender.retain()
        assert journal.reader.query("SELECT topic, sum(count), max(last), why, at_ns FROM removals") == [
            ("a", 6, 6, "more than max_count (2)", clock.now_ns)
        ]


def test_it_is_part_of_tending(tmp_path: Path) -> None:
    with journal_in(tmp_path, retention=(Retention(max_count=2),), seal=False) as journal:
        fill(journal, 4, 2)
        journal.tender.tend()
        assert left(journal) == [7, 8]
        assert journal.reader.files() == []


def test_a_rule_is_checked() -> None:
    with pytest.raises(InvalidTopic):
        Retention(topics="a..b")
    with pytest.raises(InvalidSettings):
        Retention(max_count=0)
    with pytest.raises(InvalidSettings):
        JournalSettings(retention=("b",))  # type: ignore[arg-type]  # that is the point


# Who has not read it yet


def test_nobody_loses_what_they_have_not_read(tmp_path: Path, where: str) -> None:
    with journal_in(tmp_path, retention=(Retention(max_count=1),)) as journal:
        write(journal, where, 5)
        set_cursor(journal, "slow", "*", high=4)
        set_cursor(journal, "fast", "a", high=10)
        set_cursor(journal, "elsewhere", "b", high=0)
        assert seqs_of(journal.tender.retain()) == [(1, 2), (3, 4)]
        set_cursor(journal, "slow", "*", high=10, pending=[5])
        assert journal.tender.retain() == []
        set_cursor(journal, "slow", "*", high=10, pending=[8])
        assert seqs_of(journal.tender.retain()) == [(5, 6)]
        set_cursor(journal, "slow", "*", high=10)
        assert seqs_of(journal.tender.retain()) == [(7, 8)]
        assert left(journal) == [9, 10]


def test_even_unread(tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
    with journal_in(tmp_path, retention=(Retention(max_count=1, even_unread=True),)) as journal:
        written = write(journal, where, 5)
        set_cursor(journal, "slow", "*", high=3)
        set_cursor(journal, "fast", "a", high=10)
        set_cursor(journal, "elsewhere", "b", high=0)
        with caplog.at_level(logging.INFO, "trunkline.journal"):
            removes = journal.tender.retain()
        assert seqs_of(removes) == [(1, 2), (3, 4), (5, 6), (7, 8)]
        lost = [(unread.name, unread.first, unread.last, unread.count) for each in removes for unread in each.unread_by]
        assert lost == [("slow", 4, 4, 1), ("slow", 5, 6, 2), ("slow", 7, 8, 2)]
        told = [(record.levelno, record.getMessage()) for record in caplog.records if "removed" in record.getMessage()]
        assert told == [(logging.WARNING, "removed 8 messages on a: more than max_count (1), unread by slow")]
        fates = {
            each.seq: [(outcome.subscriber, outcome.fate) for outcome in journal.reader.outcomes(each)]
            for each in written
        }
        assert [seq for seq, found in fates.items() if ("slow", tl.Fate.DROPPED) in found] == [4, 5, 6, 7, 8]
        assert fates[1] == []
        reasons = {outcome.reason for outcome in journal.reader.outcomes(written[5])}
        assert reasons == {"removed by retention before it was read: more than max_count (1)"}


async def test_a_subscription_at_work_is_not_robbed(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, retention=(Retention(max_count=1),))
    async with place.bus() as bus:
        journal = journal_of(bus)
        async with bus.subscribe("a", durable=True, name="x", capacity=2) as stream:
            for number in range(10):
                await bus.publish("a", str(number).encode())
            held = await take(stream, 1, ack=False)
            await take(stream, 3)
            await journal.flush()
            # Three are done, and the first is held: it must stay, and so must those after it.
            assert journal.tender.retain() == []
            stream.ack(held[0])
            await journal.flush()
            journal.tender.retain()
            assert left(journal)[0] == 5
            assert texts(await take(stream, 6)) == list("456789")


async def test_a_subscription_goes_on_after_what_it_lost(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, slow=True, retention=(Retention(max_count=1, even_unread=True),))
    async with place.bus() as bus:
        async with bus.subscribe("a", durable=True, name="x", capacity=2) as stream:
            ids = [await bus.publish("a", str(number).encode()) for number in range(10)]
            await asyncio.sleep(1)
            first = await take(stream, 2)
            await journal_of(bus).flush()
            tend(bus)
            rest = await take(stream, 1)
            while len(rest) < 8 and rest[-1].payload != b"9":
                rest += await take(stream, 1)
        await journal_of(bus).flush()
        seen = {each.id for each in (*first, *rest)}
        assert ids[-1] in seen
        for message_id in ids:
            found = journal_of(bus).reader.find(message_id)
            if found is None:
                # It was removed; whether it had been handed out is on record.
                continue
            (outcome,) = journal_of(bus).reader.outcomes(found)
            assert (outcome.fate is tl.Fate.DELIVERED) == (message_id in seen)
        lost = journal_of(bus).reader.query("SELECT coalesce(sum(count), 0) FROM fates WHERE fate = 'dropped'")[0][0]
        assert lost == len(ids) - len(seen)


async def test_what_was_pending_and_removed_is_dropped(simulation: Simulation, tmp_path: Path) -> None:
    """It was delivered before the restart, and can no longer be read: that is its fate, once."""
    place = Place(simulation, tmp_path, retention=(Retention(max_count=1, even_unread=True),))
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x") as stream:
        for number in range(4):
            await bus.publish("a", str(number).encode())
        held, *_ = await take(stream, 2, ack=False)
        for each in await take(stream, 2, ack=False):
            stream.ack(each)
    with place.journal() as journal:
        assert seqs_of(journal.tender.retain()) == [(1, 1), (2, 2), (3, 3)]
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x") as stream:
        await bus.publish("a", b"4")
        assert texts(await take(stream, 1)) == ["4"]
        await until(lambda: not broker_of(bus)._feeders["x"].cursor.out)
        await journal_of(bus).flush()
        (outcome,) = journal_of(bus).reader.outcomes(held)
        assert outcome.fate is tl.Fate.DROPPED


# What must not follow from it


async def test_a_new_subscription_finds_the_end_of_what_is_left(simulation: Simulation, tmp_path: Path) -> None:
    """Removed numbers are not waited for."""
    place = Place(simulation, tmp_path, slow=True, retention=(Retention(topics="a", max_age_s=1),))
    async with place.bus() as bus:
        await bus.publish("b", b"0")
        for number in range(3):
            await bus.publish("a", str(number).encode())
        await asyncio.sleep(5)
        tend(bus)
        journal = journal_of(bus)
        reads = count_reads(journal)
        async with bus.subscribe("*", durable=True, name="x", start="beginning") as stream:
            assert texts(await take(stream, 1)) == ["0"]
            await asyncio.sleep(60)
            assert len(reads) < 20, f"{len(reads)} looks into the journal where nothing has changed"
            await bus.publish("a", b"new")
            assert texts(await take(stream, 1)) == ["new"]


def count_reads(journal: Journal) -> list[object]:
    """Records all queries to the reader from now on."""
    asked: list[object] = []
    original = journal.in_thread

    async def in_thread(function: Any) -> Any:
        asked.append(function)
        return await original(function)

    journal.in_thread = in_thread  # type: ignore[method-assign]  # only counted
    return asked


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "after the crash"


@pytest.mark.parametrize("forgotten", [False, True], ids=["replaced", "forgotten"])
def test_no_number_is_given_twice(tmp_path: Path, clock: Clock, where: str, elsewhere: Path, forgotten: bool) -> None:
    """Even if the process dies after everything it wrote was removed."""
    place = tmp_path / "journal"
    with journal_in(place, clock, retention=(Retention(max_age_s=1),), replaced_s=0) as journal:
        write(journal, where, 3)
        clock.pass_s(5)
        journal.tender.retain()
        assert left(journal) == []
        if forgotten:
            journal.tender.forget_replaced()
        shutil.copytree(place, elsewhere)
    with journal_in(elsewhere, clock) as journal:
        assert seqs(fill(journal, 1)) == [7]


def test_a_failed_removal_is_tried_again(tmp_path: Path, where: str) -> None:
    with journal_in(tmp_path, retention=(Retention(max_count=2),)) as journal:
        write(journal, where, 4)
        disk = BadDisk(journal)
        disk.full = True
        with pytest.raises((tl.NotStored, JournalUnusable)):
            journal.tender.retain()
        disk.full = False
        assert len(left(journal)) == 8
        journal.tender.retain()
        assert left(journal) == [7, 8]
        assert journal.reader.query("SELECT sum(count) FROM removals") == [(6,)]
