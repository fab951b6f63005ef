"""Flipped bits, truncated and missing files: damage is named, and everything else can be read."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.books import messages as stored
from tests.journal.processes import Child
from trunkline.journal import Journal, JournalSettings, Reader, Retention

BATCHES = 12
OF = 10
QUIET = JournalSettings(seal=False, seal_rows=1000, replaced_s=0.0)


def with_bus(
    directory: Path, main: Callable[[Journal, tl.Bus], Awaitable[None]], settings: JournalSettings = QUIET
) -> None:
    async def run() -> None:
        with Journal(directory, settings) as journal:
            async with tl.connect("memory:", journal=journal) as bus:
                await main(journal, bus)

    asyncio.run(run())


async def publish(bus: tl.Bus, batch: int) -> None:
    """A batch whose payloads can be found in a file."""
    await bus.publish_many(f"topic.{batch % 3}", [payload(batch, n) for n in range(OF)])


def payload(batch: int, n: int) -> bytes:
    return f"[{batch}:{n}]".encode() * 10


def rows(directory: Path) -> None:
    """A closed journal with batches that are not sealed."""

    async def main(journal: Journal, bus: tl.Bus) -> None:
        for batch in range(BATCHES):
            await publish(bus, batch)

    with_bus(directory, main)


def files(directory: Path, count: int = 3) -> list[Path]:
    """A journal whose batches are sealed, except the last one."""

    async def main(journal: Journal, bus: tl.Bus) -> None:
        for batch in range(BATCHES):
            await publish(bus, batch)
            if (batch + 1) % (BATCHES // count) == 0:
                await asyncio.to_thread(journal.seal, everything=True)
        await publish(bus, BATCHES)

    with_bus(directory, main)
    return sealed(directory)


def sealed(directory: Path) -> list[Path]:
    return sorted(directory.glob("messages/*/*.parquet"))


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def flip_in_batch(directory: Path, batch: int) -> None:
    """Change one bit of a payload, wherever it is in the file."""
    path = directory / "journal.db"
    data = path.read_bytes()
    at = data.find(payload(batch, 5))
    assert at > 0
    while at > 0:
        flip(path, at + 7)
        at = data.find(payload(batch, 5), at + 1)


def numbers(*batches: int) -> list[int]:
    return [batch * OF + n + 1 for batch in batches for n in range(OF)]


def read(directory: Path) -> tuple[list[int], list[tl.JournalDamaged]]:
    """The readable numbers, in both ways of reading, and the reported damage."""
    told: list[tl.JournalDamaged] = []
    with Reader(directory, on_damage=told.append) as reader:
        found = [each.seq for each in stored(reader)]
        in_bulk = [seq for batch in reader.arrow() for seq in batch["seq"].to_pylist()]
    assert in_bulk == found
    assert [str(error) for error in told[: len(told) // 2]] == [str(error) for error in told[len(told) // 2 :]]
    return found, told[: len(told) // 2]


# A batch


def test_a_flipped_bit_in_a_batch_is_named_and_the_rest_can_be_read(tmp_path: Path) -> None:
    rows(tmp_path)
    flip_in_batch(tmp_path, 4)
    found, (damage,) = read(tmp_path)
    assert found == numbers(*(n for n in range(BATCHES) if n != 4))
    assert (damage.first, damage.last, damage.where) == (41, 50, "topic.1")
    assert "41 to 50" in str(damage)
    assert "topic.1" in str(damage)


def test_a_flipped_bit_in_the_head_of_a_row_keeps_nobody_from_the_rest(tmp_path: Path) -> None:
    """Its number, and SQLite's sizes of its columns: each bit of the bytes before the topic.

    With another number a row may not be found any more; then it is a gap, and nothing else is.
    """
    rows(tmp_path)
    path = tmp_path / "journal.db"
    good = path.read_bytes()
    # Behind the topic come the times, the checksum and the body: the payloads of the batch are not far.
    topic = good.rfind(b"topic.1", 0, good.find(payload(4, 0)))
    with Reader(tmp_path) as reader:
        everything = stored(reader)
    rest = [each for each in everything if each.seq not in numbers(4)]
    for at in range(topic - 14, topic):
        for bit in range(8):
            path.write_bytes(good)
            flip(path, at, 1 << bit)
            told: list[tl.JournalDamaged] = []
            try:
                with Reader(tmp_path, on_damage=told.append) as reader:
                    found = stored(reader)
            except tl.JournalUnusable:
                continue
            assert found in (rest, everything), f"bit {bit} at {at - topic}"
            assert told or found == everything or at < topic - 11, f"bit {bit} at {at - topic}"


@pytest.mark.parametrize("bit", [64, 2048, 65536])
def test_a_row_that_claims_too_much_hides_nothing(tmp_path: Path, bit: int) -> None:
    """One bit of the last number of a row: later rows, now and in future, are not skipped."""
    rows(tmp_path)
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("UPDATE batches SET last = last | ? WHERE first = 31", (bit,))
    database.commit()
    database.close()
    others = numbers(*(n for n in range(BATCHES) if n != 3))
    found, told = read(tmp_path)
    assert [damage.first for damage in told] == [31]
    assert found == others

    async def take_all(journal: Journal, bus: tl.Bus) -> None:
        async with (
            bus.subscribe("topic.>", name="worker", durable=True, start="beginning") as stream,
            asyncio.timeout(10),
        ):
            taken: list[int] = []
            while len(taken) < (BATCHES - 1) * OF:
                message = await stream.recv()
                assert message is not None
                stream.ack(message)
                taken.append(message.seq)
            await bus.publish("topic.0", b"next")
            message = await stream.recv()
            assert message is not None
            assert message.payload == b"next"
        assert taken == others

    with_bus(tmp_path, take_all)


def test_the_owner_puts_a_damaged_batch_aside_and_does_not_meet_it_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows(tmp_path)
    flip_in_batch(tmp_path, 4)

    async def take_all(journal: Journal, bus: tl.Bus) -> None:
        async with (
            bus.subscribe("topic.>", name="worker", durable=True, start="beginning") as stream,
            asyncio.timeout(10),
        ):
            taken: list[int] = []
            while len(taken) < (BATCHES - 1) * OF:
                message = await stream.recv()
                assert message is not None
                stream.ack(message)
                taken.append(message.seq)
        assert taken == numbers(*(n for n in range(BATCHES) if n != 4))

    with_bus(tmp_path, take_all)
    assert len([record for record in caplog.records if "41 to 50" in record.getMessage()]) == 1
    with Reader(tmp_path) as reader:
        ((first, last, topic, why),) = reader.query("SELECT first, last, topic, why FROM quarantine")
        assert (first, last, topic) == (41, 50, "topic.1")
        assert why
    found, told = read(tmp_path)
    assert (len(found), told) == ((BATCHES - 1) * OF, [])

    caplog.clear()

    async def go_on(journal: Journal, bus: tl.Bus) -> None:
        await asyncio.to_thread(journal.seal, everything=True)
        await bus.publish("topic.0", b"next")

    with_bus(tmp_path, go_on)
    assert not caplog.records
    found, told = read(tmp_path)
    assert (found[-1], told) == (BATCHES * OF + 1, [])


def test_a_damaged_dead_letter_keeps_nobody_from_the_journal(tmp_path: Path) -> None:
    async def reject(journal: Journal, bus: tl.Bus) -> None:
        async with bus.subscribe("topic.>", name="worker", durable=True, start="beginning") as stream:
            await publish(bus, 0)
            for _ in range(2):
                message = await stream.recv()
                assert message is not None
                stream.reject(message, "never")

    with_bus(tmp_path, reject)
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("UPDATE dead_letters SET letter = CAST('\\xff' || letter AS BLOB) WHERE seq = 1")
    database.commit()
    database.close()

    async def look(journal: Journal, bus: tl.Bus) -> None:
        assert [letter.message.seq for letter in bus.dead_letters] == [2]

    with_bus(tmp_path, look)


# A file of the lake


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def flip_in_the_middle(path: Path) -> None:
    flip(path, columns_end(path) // 2)


def columns_end(path: Path) -> int:
    """The offset at which the footer of a Parquet file begins: its length is in the last bytes."""
    data = path.read_bytes()
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


HARMS = [cut, cut_to_nothing, flip_in_the_middle, Path.unlink]


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_file_is_named_and_the_rest_can_be_read(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    _, second, _ = files(tmp_path)
    harm(second)
    found, (damage,) = read(tmp_path)
    assert found == numbers(0, 1, 2, 3, 8, 9, 10, 11, 12)
    assert (damage.first, damage.last) == (41, 80)
    assert damage.where == second.relative_to(tmp_path).as_posix()


@pytest.mark.parametrize("harm", HARMS)
def test_a_subscriber_gets_past_a_damaged_file(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    _, second, _ = files(tmp_path)
    harm(second)

    async def take_all(journal: Journal, bus: tl.Bus) -> None:
        async with (
            bus.subscribe("topic.>", name="worker", durable=True, start="beginning") as stream,
            asyncio.timeout(10),
        ):
            taken: list[int] = []
            while len(taken) < 9 * OF:
                message = await stream.recv()
                assert message is not None
                stream.ack(message)
                taken.append(message.seq)
        assert taken == numbers(0, 1, 2, 3, 8, 9, 10, 11, 12)

    with_bus(tmp_path, take_all)


def test_a_damaged_file_does_not_keep_the_others_from_being_tended(tmp_path: Path) -> None:
    """Joining skips it, and retention of other topics continues."""
    settings = JournalSettings(
        seal=True, tend_s=1000.0, seal_rows=100, replaced_s=0.0, retention=(Retention(topics="old.>", max_count=1),)
    )

    async def main(journal: Journal, bus: tl.Bus) -> None:
        for batch in range(20):
            await publish(bus, batch)
            await bus.publish("old.a", b"old")
            await asyncio.to_thread(journal.seal, everything=True)
        second = sealed(tmp_path)[1]
        flip_in_the_middle(second)
        before = len(journal.reader.files())
        await asyncio.to_thread(journal.tender.tend)
        after = [file.path for file in journal.reader.files()]
        assert second.relative_to(tmp_path).as_posix() in after
        assert len(after) < before - 10
        assert [message.seq for message in journal.reader.messages("old.a")] == [20 * (OF + 1)]

    with_bus(tmp_path, main, settings)


def test_joining_does_not_make_damage_look_sound(tmp_path: Path) -> None:
    """Data of a damaged file must not go into a new one with a valid checksum."""
    whole = tmp_path / "whole"
    second = files(whole, 12)[1].relative_to(whole)
    with Reader(whole) as reader:
        everything = stored(reader)
    rest = [each for each in everything if each.seq not in numbers(1)]
    chance = random.Random(5)
    for n in range(20):
        directory = tmp_path / str(n)
        shutil.copytree(whole, directory)
        flip(directory / second, chance.randrange(4, columns_end(directory / second)), 1 << chance.randrange(8))
        with Journal(directory, QUIET) as journal, contextlib.suppress(tl.JournalDamaged):
            journal.tender.join()
        told: list[tl.JournalDamaged] = []
        with Reader(directory, on_damage=told.append) as reader:
            found = stored(reader)
        assert found == (rest if told else everything)


def test_a_flipped_bit_anywhere_in_a_file_is_told_or_changes_nothing(tmp_path: Path) -> None:
    """Also in the footer, which describes everything and has no checksum of its own."""
    directory = tmp_path / "journal"
    files(directory, 1)
    with Child(tmp_path, "flip", directory, 7, 150) as child:
        child.finish()
        outcomes = {words[0] for words in child.said("flipped")}
        assert outcomes <= {"told", "same"}, {words[0]: words for words in child.said("flipped")}


class Slow(Reader):
    """A reader that is disturbed between its query and its reading."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def step(self, *args: object, **options: object) -> object:  # type: ignore[override]  # whatever it takes
        found = super().step(*args, **options)  # type: ignore[arg-type]  # as it came
        self.meanwhile()
        return found


def test_a_file_that_was_replaced_meanwhile_is_not_damage(tmp_path: Path) -> None:
    """A subscriber that catches up must not take it for lost, and continue behind it."""
    files(tmp_path, 12)

    async def main(journal: Journal, bus: tl.Bus) -> None:
        told: list[tl.JournalDamaged] = []

        def join() -> None:
            reader.meanwhile = lambda: None
            journal.tender.join()
            journal.tender.forget_replaced()

        with Slow(tmp_path, on_damage=told.append) as reader:
            reader.meanwhile = join
            found, upto = await asyncio.to_thread(reader.some_after, ">", 0, 100)
        assert not told
        assert [message.seq for message in found] == list(range(1, upto + 1))

    with_bus(tmp_path, main)


# The journal itself

REPAIR = "trunkline journal verify"


def overwrite_the_header(path: Path) -> None:
    path.write_bytes(b"\x17" * 100 + path.read_bytes()[100:])


def cut_in_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 8192 * 4096])


def cut_within_a_page(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 100])


def garble_the_schema(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"CREATE TABLE batches", b"CREATE T\xceBLE batches"))


@pytest.mark.parametrize("harm", [overwrite_the_header, cut_in_half, cut_within_a_page, garble_the_schema])
def test_a_damaged_journal_says_what_to_do_next(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    rows(tmp_path)
    path = tmp_path / "journal.db"
    harm(path)
    harmed = path.read_bytes()
    with pytest.raises(tl.JournalUnusable) as unusable:
        tl.connect("memory:", journal=tmp_path)
    assert REPAIR in str(unusable.value)
    with pytest.raises(tl.JournalUnusable) as unusable, Reader(tmp_path) as reader:
        stored(reader)
    assert REPAIR in str(unusable.value)
    # Nobody made it worse.
    assert path.read_bytes() == harmed


@pytest.mark.parametrize("harm", [cut_to_nothing, Path.unlink])
def test_an_empty_journal_beside_a_full_lake_is_not_taken_for_a_new_one(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """Numbers would start at 1 again, and the files would be ignored and deleted."""
    before = files(tmp_path)
    harm(tmp_path / "journal.db")
    with pytest.raises(tl.JournalUnusable) as unusable:
        Journal(tmp_path).open().close()
    assert REPAIR in str(unusable.value)
    assert sealed(tmp_path) == before


def test_a_journal_that_could_not_be_opened_can_be_when_it_is_mended(tmp_path: Path) -> None:
    """The attempt leaves no lock and no thread behind."""
    rows(tmp_path)
    path = tmp_path / "journal.db"
    shutil.copy(path, tmp_path / "copy")
    overwrite_the_header(path)
    for _ in range(2):
        with pytest.raises(tl.JournalUnusable):
            tl.connect("memory:", journal=tmp_path)
    shutil.copy(tmp_path / "copy", path)
    found, told = read(tmp_path)
    assert (found, told) == (numbers(*range(BATCHES)), [])
    with Journal(tmp_path):
        pass


# The log


@pytest.mark.parametrize("seed", range(4))
def test_of_a_log_that_was_cut_short_everything_before_the_cut_is_there(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "journal"
    with Child(tmp_path, "seal_nothing", directory) as child:
        child.heard("p")
        child.kill_after(0.1)
        published = [words[2] for words in child.said("p")]
    log = directory / "journal.db-wal"
    chance = random.Random(seed)
    used = len(log.read_bytes().rstrip(b"\0"))
    log.write_bytes(log.read_bytes()[: chance.randrange(32, used)])
    # The memory that processes share is as old as the log before the cut: it died with the machine.
    (directory / "journal.db-shm").unlink()
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)

    async def go_on(journal: Journal, bus: tl.Bus) -> None:
        await bus.publish("more", b"more")

    with_bus(directory, go_on)
    with Reader(directory) as reader:
        found = stored(reader)
    *before, more = [each.id for each in found]
    # What was stored last may not have been reported before the kill.
    assert before[: len(published)] == published[: len(before)]
    assert more not in published
    assert [each.seq for each in found] == list(range(1, len(found) + 1))
    # A reader sees the same.
    if before:
        with Reader(copy) as reader:
            assert [each.id for each in stored(reader)] == before
