"""A crash at any step of sealing, joining and removing: every message is stored, or its removal is recorded."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.books import fates
from tests.journal.children import TOPICS
from tests.journal.journals import Clock, Place, fail_on_damage, fill, journal_in, journal_of, seqs, take, texts, until
from tests.journal.processes import Child
from trunkline.errors import JournalDamaged
from trunkline.journal import Journal, Reader, Retention, lake
from trunkline.journal.cursor import pack
from trunkline.journal.repair.verify import verify
from trunkline.testing import Simulation
from trunkline.topic import matches

SLOW = "slow"
READ = 5
"""What the durable subscription has read."""
RULE = Retention(topics="a", max_count=1, even_unread=True)


class Camera:
    """Copies a journal before and after each change on disk: the state that a crash at this moment would leave."""

    def __init__(self, journal: Journal, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = journal.directory
        self._folder = folder
        self.pictures: list[Path] = []
        for name in ("fsync", "rename", "unlink"):
            patch.setattr(os, name, self._around(getattr(os, name), name))
        patch.setattr(journal.writer, "_try", self._around(journal.writer._try, "commit"))

    def _around(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def surrounded(*args: Any, **options: Any) -> Any:
            self._take(f"before {name}")
            result = call(*args, **options)
            self._take(f"after {name}")
            return result

        return surrounded

    def _take(self, name: str) -> None:
        picture = self._folder / f"{len(self.pictures)} {name}"
        shutil.copytree(self._directory, picture)
        self.pictures.append(picture)


def seal(journal: Journal) -> None:
    journal.seal(everything=True)


def lake_of(journal: Journal) -> list[tl.Message]:
    """Three files with topics that go, and that stay."""
    written: list[tl.Message] = []
    for _ in range(3):
        written += fill(journal, 4, 2, "a", "b")
        seal(journal)
    return written


def set_cursor(journal: Journal) -> None:
    row = (SLOW, "*", READ, pack([]), 0, 0)
    journal.writer.call(lambda database: database.execute("INSERT INTO cursors VALUES (?, ?, ?, ?, ?, ?)", row))


def remove_and_forget(journal: Journal) -> None:
    journal.tender.retain()
    journal.tender.forget_replaced()


def seal_and_tend(journal: Journal) -> None:
    seal(journal)
    journal.tender.tend()


OPERATIONS: dict[str, Callable[[Journal], object]] = {
    "remove": lambda journal: journal.tender.retain(),
    "join": lambda journal: journal.tender.join(),
    "seal": seal,
    "remove and forget": remove_and_forget,
    "tend": seal_and_tend,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_at_any_step(tmp_path: Path, name: str) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"retention": (RULE,), "replaced_s": 0.0, "seal_rows": 40}
    with journal_in(tmp_path / "journal", clock, **settings) as journal:
        written = lake_of(journal)
        # What is not sealed: messages, and fates.
        written += fill(journal, 4, 2, "a", "b")
        set_cursor(journal)
        journal.ledger.fate("other", "b", tl.Fate.DROPPED, 1, 1, 1, "why", clock.now_ns)
        journal.intake.flush()
        with pytest.MonkeyPatch.context() as patch:
            camera = Camera(journal, tmp_path, patch)
            OPERATIONS[name](journal)
    assert len(camera.pictures) > 10
    seen = {check_all_accounted_for(picture, written) for picture in camera.pictures}
    assert (len(seen) > 1) == ("remove" in name)
    for picture in camera.pictures:
        # The next process continues: in the end it is as if there had been no crash.
        with journal_in(picture, clock, **settings) as journal:
            journal.tender.retain()
            seal(journal)
            journal.tender.tend()
            counted = {file.path for kind in ("messages", "fates") for file in journal.reader.files(kind)}
            there = {path.relative_to(picture).as_posix() for path in picture.glob("*/date=*/*")}
            assert there == counted, picture.name
        assert check_all_accounted_for(picture, written) >= max(seen), picture.name


def check_all_accounted_for(directory: Path, written: Sequence[tl.Message]) -> int:
    """Each message is stored, or its removal is recorded, with a fate if it was unread. Returns the count."""
    with journal_in(directory) as journal:
        reader = journal.reader
        found = {each.seq: each for each in reader.messages()}
        removals = reader.query("SELECT topic, first, last, count FROM removals")
        dropped = [row for row in fates(reader) if row.subscriber == SLOW]
    assert all(found.get(each.seq, each) == each for each in written), directory.name
    gone = [each for each in written if each.seq not in found]
    assert Counter(each.topic for each in gone) == sum(
        (Counter({topic: count}) for topic, _, _, count in removals), Counter()
    ), directory.name
    for each in gone:
        assert any(topic == each.topic and first <= each.seq <= last for topic, first, last, _ in removals)
    lost = [seq for row in dropped for seq in range(row.first, row.last + 1) if is_on(written, seq, row.pattern)]
    assert lost == [each.seq for each in gone if each.seq > READ], directory.name
    assert sum(row.count for row in dropped) == len(lost), directory.name
    assert verify(directory).findings == (), directory.name
    return len(gone)


def is_on(written: Sequence[tl.Message], seq: int, pattern: str) -> bool:
    return any(each.seq == seq and matches(pattern, each.topic) for each in written)


# Who reads, meanwhile


def test_a_subscription_that_comes_while_a_file_is_rewritten_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal_in(tmp_path, retention=(Retention(topics="a", max_count=1),)) as journal:
        written = lake_of(journal)
        write = lake.write

        def slow(*args: Any) -> Any:
            set_cursor(journal)
            monkeypatch.setattr(lake, "write", write)
            return write(*args)

        monkeypatch.setattr(lake, "write", slow)
        assert journal.tender.retain() == []
        assert list(journal.reader.messages()) == written
        assert len(list(tmp_path.glob("messages/*/*"))) == 3


async def test_what_a_subscriber_holds_is_not_removed_before_its_fate_is_written(
    simulation: Simulation, tmp_path: Path
) -> None:
    """The process dies after retention: messages in the inbox must not be lost without a fate."""
    place = Place(simulation, tmp_path, retention=(Retention(max_count=1, even_unread=True),))
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x", capacity=4) as stream:
        for number in range(10):
            await bus.publish("a", str(number).encode())
        assert texts(await take(stream, 2)) == ["0", "1"]
        (held,) = await take(stream, 1, ack=False)
        await journal_of(bus).flush()
        await until(lambda: stream.depth == 4)
        # It holds one, four are in its inbox, and the last three were read ahead.
        journal_of(bus).tender.retain()
        crashed = place.crash()
        stream.ack(held)
    async with crashed.bus() as bus:
        async with bus.subscribe("a", durable=True, name="x") as stream:
            assert texts(await take(stream, 8)) == list("23456789")
        await journal_of(bus).flush()
        assert sum(row.count for row in fates(journal_of(bus).reader)) == 10


def test_a_batch_that_is_on_its_way_to_its_subscribers_is_not_removed(tmp_path: Path) -> None:
    """It is committed, but the event loop has not delivered it yet: its readers are not known."""
    with journal_in(tmp_path, retention=(Retention(max_count=1, even_unread=True),)) as journal:
        fill(journal, 6)
        journal.intake.committed = 3
        assert [(each.first, each.last) for each in journal.tender.retain()] == [(1, 1), (2, 2)]


# What else must not happen


def test_a_file_that_has_other_rows_than_the_journal_lists_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with journal_in(tmp_path, retention=(RULE,), seal_rows=40) as journal:
        written = lake_of(journal)
        journal.writer.call(lambda database: database.execute("UPDATE files SET rows = rows + 1 WHERE first = 9"))
        with caplog.at_level(logging.ERROR):
            removed = journal.tender.retain()
            assert journal.tender.join() == 0
        assert len([record for record in caplog.records if "rows where the journal lists" in record.message]) == 1
        assert [(each.first, each.count) for each in removed] == [(1, 4)]
        assert list(journal.reader.messages()) == [each for each in written if each.topic == "b" or each.seq > 8]
        assert not verify(tmp_path).good


def test_ctrl_c_while_the_transaction_waits_does_not_take_the_file_from_it(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        written = fill(journal, 3, 2)
        call = journal.writer.call

        class Interrupted:
            def result(self) -> None:
                raise KeyboardInterrupt

        def interrupted(function: Any) -> Any:
            call(function)
            return Interrupted()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal.writer, "call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                seal(journal)
        assert list(journal.reader.messages()) == written
        assert len(journal.reader.files()) == 1
    assert verify(tmp_path).good


# Processes that are killed


class Watcher:
    """Reads all of a journal again and again, in a thread, while others write, remove and die."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                with Reader(self._directory, on_damage=fail_on_damage) as reader:
                    numbers = seqs(reader.messages())
            except tl.JournalUnusable:
                # There is none yet.
                continue
            except JournalDamaged as damage:
                self.wrong.append(str(damage))
                continue
            self.looks += 1
            if numbers != sorted(set(numbers)):
                self.wrong.append(f"{len(numbers)} numbers do not rise")


def remove_and_die(tmp_path: Path, lives: int, longest_s: float) -> None:
    directory = tmp_path / "journal"
    tried, stored = Counter[str](), Counter[str]()
    with ExitStack() as ends:
        watcher = ends.enter_context(Watcher(directory))
        following = ends.enter_context(Child(tmp_path, "remove", directory, 0))
        for life in range(lives):
            child, following = following, ends.enter_context(Child(tmp_path, "remove", directory, life + 1))
            child.go()
            child.heard("removed" if life % 2 else "open")
            child.kill_after(longest_s * (life % 7) / 7)
            assert "Traceback" not in child.complaints(), child.complaints()
            for topic, count in child.said("try"):
                tried[topic] += int(count)
            for topic, count in child.said("stored"):
                stored[topic] += int(count)
            check_removals(directory, tried, stored)
    assert watcher.looks > lives // 2
    assert watcher.wrong == []
    with Reader(directory) as reader:
        last = reader.last()
    with Child(tmp_path, "drain", directory, last) as child:
        child.finish()
    total = check_removals(directory, tried, stored)
    with Reader(directory, on_damage=fail_on_damage) as reader:
        rows = [row for row in fates(reader) if row.subscriber == "worker"]
        assert reader.query("SELECT count(*) FROM removals")[0][0] > 0
    assert {row.fate for row in rows} <= {tl.Fate.DELIVERED.value, tl.Fate.DROPPED.value}
    assert sum(row.count for row in rows) == sum(total[topic] for topic in TOPICS if topic.startswith("work."))
    assert verify(directory).findings == ()


def check_removals(directory: Path, tried: Counter[str], stored: Counter[str]) -> Counter[str]:
    """Stored messages exist, or are counted as removed. Returns their total by topic."""
    with Reader(directory, on_damage=fail_on_damage) as reader:
        total = Counter(each.topic for each in reader.messages())
        for topic, count in reader.query("SELECT topic, sum(count) FROM removals GROUP BY topic"):
            total[topic] += count
    assert all(stored[topic] <= total[topic] <= tried[topic] for topic in TOPICS), (stored, total, tried)
    return total


def test_kills_while_it_removes(tmp_path: Path) -> None:
    remove_and_die(tmp_path, lives=8, longest_s=0.5)


@pytest.mark.long
def test_100_kills_while_it_removes(tmp_path: Path) -> None:
    remove_and_die(tmp_path, lives=100, longest_s=0.7)
