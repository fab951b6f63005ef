"""Real damage is found, named and repaired: undamaged data is kept once, and the journal can be used again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import trunkline as tl
from tests.journal.journals import fill, journal_in, seqs, until
from trunkline.journal import Journal, JournalSettings, Reader, Sync, records
from trunkline.journal.repair.findings import Finding, Repaired
from trunkline.journal.repair.repair import repair
from trunkline.journal.repair.verify import verify

PAGE = 4096
DEADLINE_S = 90.0
ORDERS = 80


# A journal with something of everything


def stock(directory: Path, *, sealed: bool) -> None:
    """Some hundred batches from a few bytes to some pages, and all that can wait for somebody. No number is missing."""
    chance = random.Random(7)
    settings = JournalSettings(sync=Sync.SYSTEM, seal=False)

    async def life() -> None:
        with Journal(directory, settings) as journal:
            async with tl.connect("memory:", journal=journal, name="shop", settings=tl.Settings(drain_s=0.0)) as bus:
                retry = tl.Retry(attempts=2, delay_s=3600.0, max_delay_s=3600.0)
                seen: set[int] = set()

                @bus.on("orders.*", name="billing", durable=True, retry=retry)
                async def billing(message: tl.Message) -> None:
                    seen.add(message.seq)
                    if message.seq % 9 == 0:
                        raise tl.Reject("every ninth")
                    if message.seq % 25 == 0:
                        raise ConnectionError("later")

                for turn in range(ORDERS):
                    await bus.publish("orders.placed", chance.randbytes(chance.choice([10, 300, 3000])))
                    payloads = [chance.randbytes(chance.choice([5, 60])) for _ in range(chance.choice([1, 30, 150]))]
                    await bus.publish_many(chance.choice(["bulk", "notes.a", "notes.b"]), payloads)
                    if sealed and turn == ORDERS // 3:
                        await bus.flush()
                        journal.seal(everything=True)
                answer = tl.Message(
                    topic="_reply", type=tl.MessageType.RESPONSE, request_id="asked long ago", payload=b"late"
                )
                await bus.post(answer)
                await until(lambda: len(seen) == ORDERS)
                await bus.flush()

    asyncio.run(life())


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in ("hot", "half sealed"):
        made[name] = tmp_path_factory.mktemp("stock") / name
        stock(made[name], sealed=name != "hot")
    return made


@pytest.fixture
def directory(stocks: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(stocks["half sealed"], tmp_path / "journal")
    return tmp_path / "journal"


def fail(damage: tl.JournalDamaged) -> None:
    raise AssertionError(f"after a repair there is still damage: {damage}")


def contents(directory: Path) -> dict[int, tl.Message]:
    with Reader(directory, on_damage=fail) as reader:
        found = list(reader.messages())
    assert seqs(found) == sorted(set(seqs(found))), "a message is there twice, or out of order"
    return {message.seq: message for message in found}


def named(findings: Iterable[Finding]) -> set[int]:
    return {number for each in findings if each.last for number in range(each.first, each.last + 1)}


def mended(directory: Path, before: dict[int, tl.Message]) -> tuple[set[int], Repaired]:
    """Verify, repair and use a damaged journal. Returns the lost numbers, which must be the reported ones."""
    assert not verify(directory).good, "the damage was not found"
    repaired = repair(directory)
    again = verify(directory)
    assert again.good, again.findings
    after = contents(directory)
    assert again.messages + again.sealed_messages == len(after)
    assert all(before[seq] == message for seq, message in after.items()), "something came back changed"
    lost = before.keys() - after.keys()
    assert named(repaired.lost) == lost
    goes_on(directory, before, after)
    assert repair(directory) == Repaired((), ()), "there was nothing more to repair"
    return lost, repaired


def goes_on(directory: Path, before: dict[int, tl.Message], after: dict[int, tl.Message]) -> None:
    """It opens, assigns only new numbers, seals, and a durable subscription works."""

    async def life() -> None:
        async with tl.connect("memory:", journal=directory, name="next") as bus:
            got = asyncio.Event()

            @bus.on("orders.*", name="billing", durable=True)
            async def billing(message: tl.Message) -> None:
                if message.payload == b"new":
                    assert message.seq > max(before)
                    got.set()

            await bus.publish("orders.new", b"new")
            async with asyncio.timeout(DEADLINE_S):
                await got.wait()
            await bus.aclose(drain_s=0.0)

    asyncio.run(life())
    with Journal(directory, JournalSettings(sync=Sync.SYSTEM), threaded=False) as journal:
        journal.seal(everything=True)
    found = contents(directory)
    assert {seq: message for seq, message in found.items() if seq in before} == after
    assert len(found) == len(after) + 1
    sealed = verify(directory)
    assert (sealed.good, sealed.messages, sealed.sealed_messages) == (True, 0, len(found)), sealed.findings


# What lies where in the database


class Batch(NamedTuple):
    first: int
    last: int
    body: bytes
    pages: tuple[int, ...]

    @property
    def numbers(self) -> range:
        return range(self.first, self.last + 1)


class Pages:
    """The database of a journal, page by page, to be damaged."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "journal.db"
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            rows = database.execute("SELECT first, last, body FROM batches ORDER BY first").fetchall()
            roots = "SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0"
            self.roots: dict[str, int] = dict(database.execute(roots))
            self.batches = [
                Batch(first, last, body, pages)
                for (first, last, body), pages in zip(rows, places(database), strict=True)
            ]
        self.data = bytearray(self.path.read_bytes())
        self.hurt: set[int] = set()

    def overwrite(self, number: int, content: bytes = bytes(PAGE)) -> None:
        self.data[(number - 1) * PAGE : number * PAGE] = content
        self.hurt.add(number)

    @property
    def lost(self) -> set[int]:
        """The messages with some part on a damaged page."""
        return {number for batch in self.batches if self.hurt & set(batch.pages) for number in batch.numbers}

    def write(self) -> None:
        self.path.write_bytes(self.data)


def logged(directory: Path) -> set[int]:
    """The pages that are in the write-ahead log."""
    log = (directory / "journal.db-wal").read_bytes()
    frames = range(32, len(log) - PAGE, 24 + PAGE)
    return {int.from_bytes(log[at : at + 4], "big") for at in frames}


def places(database: sqlite3.Connection) -> Iterator[tuple[int, ...]]:
    """The pages on which each batch lies, in the order of their numbers."""
    query = "SELECT path, pageno, pagetype, ncell FROM dbstat WHERE name = 'batches' ORDER BY path"
    try:
        rows = database.execute(query).fetchall()
    except sqlite3.OperationalError:
        pytest.skip("this SQLite does not tell what lies where")
    for leaf, page, kind, cells in rows:
        for cell in range(cells) if kind == "leaf" else ():
            beyond = [other for path, other, *_ in rows if path.startswith(f"{leaf}{cell:03x}+")]
            yield page, *beyond


def one_in_the_middle(pages: Pages) -> None:
    pages.overwrite(pages.batches[len(pages.batches) // 2].pages[0])


def the_first_and_the_last(pages: Pages) -> None:
    pages.overwrite(pages.batches[0].pages[0])
    pages.overwrite(pages.batches[-1].pages[-1])


def noise_in_three_places(pages: Pages) -> None:
    chance = random.Random(3)
    for part in (1, 2, 3):
        pages.overwrite(pages.batches[len(pages.batches) * part // 4].pages[-1], chance.randbytes(PAGE))


def the_second_page_of_a_long_one(pages: Pages) -> None:
    pages.overwrite(max((batch.pages for batch in pages.batches), key=len)[1])


def the_very_first_page(pages: Pages) -> None:
    pages.overwrite(1)


def cut_short(pages: Pages) -> None:
    count = len(pages.data) // PAGE
    keep = count * 2 // 3
    pages.hurt = set(range(keep + 1, count + 1))
    del pages.data[keep * PAGE :]


@pytest.mark.parametrize(
    "damage",
    [
        one_in_the_middle,
        the_first_and_the_last,
        noise_in_three_places,
        the_second_page_of_a_long_one,
        the_very_first_page,
        cut_short,
    ],
)
@pytest.mark.parametrize("which", ["hot", "half sealed"])
def test_of_a_database_with_damaged_pages_all_is_saved_that_was_not_on_them(
    stocks: dict[str, Path], tmp_path: Path, which: str, damage: Callable[[Pages], None]
) -> None:
    directory = tmp_path / "journal"
    shutil.copytree(stocks[which], directory)
    before = contents(directory)
    pages = Pages(directory)
    damage(pages)
    pages.write()
    lost, repaired = mended(directory, before)
    assert lost == pages.lost
    (aside,) = [name for name in repaired.aside if name.endswith("journal.db")]
    assert (directory / aside).read_bytes() == pages.data, "it is put aside as it was found"
    assert [path.name for path in (directory / "damaged").iterdir() if path.name.startswith(".")] == []


TABLES = ("meta", "batches", "batches_by_topic", "quarantine", "fates", "cursors", "retries", "dead_letters", "files")


@pytest.mark.parametrize("table", [*TABLES, "orphans", "file_topics", "removals", "sqlite_sequence", "files_in_order"])
def test_no_message_is_lost_with_the_page_at_which_a_table_begins(directory: Path, table: str) -> None:
    before = contents(directory)
    pages = Pages(directory)
    pages.overwrite(pages.roots[table], random.Random(table).randbytes(PAGE))
    pages.write()
    lost, _ = mended(directory, before)
    assert lost == pages.lost, "a table this small lies on one page"
    assert len(lost) < 300


@pytest.mark.parametrize("table", ["batches", "deaths"])
def test_the_record_of_deaths_is_saved_or_said_to_be_lost(directory: Path, table: str) -> None:
    with contextlib.closing(sqlite3.connect(directory / "journal.db")) as database:
        for seq in (1, 2, 3):
            database.execute(records.DIED, ("x", seq, 5, "a", f"id{seq}", "rejected", "no", "Reject", "here", 1))
        database.commit()
    pages = Pages(directory)
    pages.overwrite(pages.roots[table], random.Random(table).randbytes(PAGE))
    pages.write()
    repaired = repair(directory)
    with Reader(directory) as reader:
        saved = [death.seq for death in records.deaths(reader, 1, 3) if death.subscriber == "x"]
    said = [finding.why for finding in repaired.lost if finding.where == "deaths"]
    if table == "deaths":
        assert (saved, len(said)) == ([], 1)
        assert said[0].startswith("the record of deaths is lost beyond number 0")
    else:
        assert (saved, said) == ([1, 2, 3], [])
    assert verify(directory).good


def test_a_flipped_bit_in_a_batch_costs_that_batch(directory: Path) -> None:
    before = contents(directory)
    pages = Pages(directory)
    first, last, body, _ = pages.batches[37]
    pages.data[pages.data.index(body[:100]) + 50] ^= 4
    pages.write()
    verified = verify(directory)
    (finding,) = verified.findings
    assert (finding.why, finding.first, finding.last) == ("its checksum does not match", first, last)
    lost, repaired = mended(directory, before)
    assert lost == set(range(first, last + 1))
    assert repaired == Repaired((finding,), ())
    assert verify(directory).quarantined == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_bit_that_is_flipped_anywhere_costs_one_batch_at_most(directory: Path, seed: int) -> None:
    before = contents(directory)
    pages = Pages(directory)
    at = random.Random(seed).randrange(PAGE, len(pages.data))
    pages.data[at] ^= 1 << seed % 8
    pages.hurt.add(at // PAGE + 1)
    pages.write()
    if verify(directory).good:
        # It fell on something that means nothing.
        assert contents(directory) == before
        return
    lost, _ = mended(directory, before)
    assert lost <= pages.lost


def test_what_was_only_in_the_log_is_saved_too(directory: Path, tmp_path: Path) -> None:
    with Journal(directory, JournalSettings(seal=False), threaded=False) as journal:
        fill(journal, 50, 10)
        copy = tmp_path / "copy"
        # As after a crash: what was committed last is in the log, and nowhere else.
        shutil.copytree(directory, copy)
    before = contents(copy)
    assert len(before) == len(contents(directory))
    data = bytearray((copy / "journal.db").read_bytes())
    middle = len(data) // PAGE // 2 * PAGE
    data[middle : middle + PAGE] = bytes(PAGE)
    (copy / "journal.db").write_bytes(data)
    lost, _ = mended(copy, before)
    assert len(lost) < 300
    assert max(lost, default=0) < max(before) - 500


def test_a_repair_that_was_killed_can_be_done_again(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step there is the old database with its log, or the new one with everything readable."""
    copy = tmp_path / "copy"
    with Journal(directory, JournalSettings(seal=False), threaded=False) as journal:
        fill(journal, 50, 10)
        shutil.copytree(directory, copy)
    # What was committed last is in the log, and nowhere else. A page that the log has not is damaged.
    shutil.copytree(copy, tmp_path / "to look at")
    there = [page for batch in Pages(tmp_path / "to look at").batches for page in batch.pages]
    page = next(page for page in there if page not in logged(copy))
    data = bytearray((copy / "journal.db").read_bytes())
    data[(page - 1) * PAGE : page * PAGE] = bytes(PAGE)
    (copy / "journal.db").write_bytes(data)
    pictures: list[Path] = []

    def pictured(call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **options: Any) -> Any:
            pictures.append(tmp_path / f"picture {len(pictures)} before {call.__name__}")
            shutil.copytree(copy, pictures[-1])
            return call(*args, **options)

        return around

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", pictured(os.unlink))
        patch.setattr(os, "replace", pictured(os.replace))
        repair(copy)
    after = contents(copy)
    assert len(after) > 500
    assert len(pictures) >= 4
    for picture in pictures:
        repair(picture)
        assert contents(picture) == after, picture.name
        assert verify(picture).good, picture.name


def test_no_number_is_given_twice_though_what_came_last_is_lost(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Journal(directory, JournalSettings(seal=False), threaded=False) as journal:
        fill(journal, 5, 100)
        shutil.copytree(directory, copy)
    before = contents(copy)
    pages = Pages(copy)
    pages.overwrite(pages.batches[-1].pages[0])
    pages.write()
    repair(copy)
    after = contents(copy)
    lost = before.keys() - after.keys()
    assert max(before) in lost <= pages.lost
    goes_on(copy, before, after)


def test_a_lost_database_is_made_again_of_the_lake(directory: Path) -> None:
    before = contents(directory)
    sealed = verify(directory).sealed_messages
    for path in directory.glob("journal.db*"):
        path.unlink()
    (finding,) = verify(directory).findings
    assert finding.where == "journal.db"
    (loss,) = repair(directory).lost
    assert loss == Finding("journal.db", "the file is missing, and with it all messages that were not sealed")
    assert verify(directory).good
    after = contents(directory)
    assert after == {seq: message for seq, message in before.items() if seq <= sealed}
    goes_on(directory, after, after)


def test_opening_a_journal_without_its_database_does_not_cost_the_lake(directory: Path) -> None:
    for path in directory.glob("journal.db*"):
        path.unlink()
    lake = sorted(directory.glob("*/date=*/*.parquet"))
    assert len(lake) == 2
    with contextlib.suppress(tl.JournalUnusable), Journal(directory, threaded=False):
        pass
    assert sorted(directory.glob("*/date=*/*.parquet")) == lake


def test_opening_a_journal_that_has_a_wrong_name_for_a_file_does_not_cost_the_file(directory: Path) -> None:
    path = the_file(directory)
    change(directory, "UPDATE files SET path = replace(path, '-', '_') WHERE kind = 'messages'")
    before = path.read_bytes()
    with contextlib.suppress(tl.JournalUnusable), Journal(directory, threaded=False):
        pass
    assert any(each.read_bytes() == before for each in directory.rglob("*.parquet")), "it was removed as a leftover"


# Rows that are no good, in a database that is


def change(directory: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(directory / "journal.db")) as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0, statement
        database.commit()


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("UPDATE dead_letters SET letter = x'00' WHERE rowid_of", "journal.db, dead letter billing "),
        ("UPDATE dead_letters SET letter = substr(letter, 1, 40) WHERE rowid_of", "journal.db, dead letter billing "),
        ("UPDATE retries SET message = x'ff' WHERE rowid_of", "journal.db, retry billing "),
        ("UPDATE retries SET story = x'ff' WHERE rowid_of", "journal.db, retry billing "),
        ("UPDATE orphans SET message = x'00'", "journal.db, orphan "),
        ("UPDATE orphans SET why = 'because'", "journal.db, orphan "),
        ("UPDATE cursors SET pending = x'c1'", "journal.db, durable subscription billing"),
        ("UPDATE cursors SET pattern = CAST(x'ff41' AS TEXT)", "journal.db, durable subscription billing"),
        ("UPDATE fates SET fate = 'delighted' WHERE number = (SELECT max(number) FROM fates)", "journal.db, fates "),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_and_removed_and_no_message_with_it(
    directory: Path, statement: str, where: str
) -> None:
    table = statement.split()[1]
    change(directory, statement.replace("rowid_of", f"seq = (SELECT min(seq) FROM {table})"))
    before = contents(directory)
    (finding,) = verify(directory).findings
    assert finding.where.startswith(where)
    lost, repaired = mended(directory, before)
    assert lost == set()
    assert repaired == Repaired((finding,), ())


def test_a_cursor_keeps_its_place_when_what_it_had_pending_is_not_known(directory: Path) -> None:
    change(directory, "UPDATE cursors SET pending = x'c1'")
    with Reader(directory) as reader:
        place = reader.query("SELECT name, pattern, high FROM cursors")
    repair(directory)
    with Reader(directory) as reader:
        assert reader.query("SELECT name, pattern, high FROM cursors") == place


def test_a_topic_that_is_no_text_costs_its_batch(directory: Path) -> None:
    before = contents(directory)
    first, last, *_ = Pages(directory).batches[11]
    change(directory, f"UPDATE batches SET topic = CAST(x'e962756c6b' AS TEXT) WHERE first = {first}")
    assert verify(directory).findings == (
        Finding(f"batch {first} on \\udce9bulk", "its topic is not valid text", first, last),
    )
    lost, _ = mended(directory, before)
    assert lost == set(range(first, last + 1))


# The lake

GROUP = 20_000
LAKE = 50_000


@pytest.fixture(scope="module")
def lake_stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lake") / "journal"
    journal = journal_in(directory)
    fill(journal, LAKE // 5000, 5000, "a", "b", "c.d")
    journal.seal(everything=True)
    fill(journal, 10, 10, "a")
    journal.close()
    return directory


@pytest.fixture
def lake(lake_stock: Path, tmp_path: Path) -> Path:
    shutil.copytree(lake_stock, tmp_path / "journal")
    return tmp_path / "journal"


def the_file(directory: Path, kind: str = "messages") -> Path:
    (path,) = directory.glob(f"{kind}/date=*/*.parquet")
    return path


def column_bytes(path: Path, group: int, name: str) -> int:
    """Where the bytes of a column in a row group are, about their middle."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        assert parquet.num_row_groups == 3
        at = parquet.schema_arrow.names.index(name)
        column = parquet.metadata.row_group(group).column(at)
        return int(column.data_page_offset + column.total_compressed_size // 2)


@pytest.mark.parametrize(
    ("group", "first", "last"), [(0, 1, GROUP), (1, GROUP + 1, 2 * GROUP), (2, 2 * GROUP + 1, LAKE)]
)
def test_a_flipped_bit_in_a_file_costs_its_row_group(lake: Path, group: int, first: int, last: int) -> None:
    before = contents(lake)
    path = the_file(lake)
    data = bytearray(path.read_bytes())
    data[column_bytes(path, group, "id")] ^= 16
    path.write_bytes(data)
    name = path.relative_to(lake).as_posix()
    assert verify(lake).findings == (Finding(name, "its checksum does not match", 1, LAKE),)
    lost, repaired = mended(lake, before)
    assert lost == set(range(first, last + 1))
    saved = LAKE - (last - first + 1)
    why = f"its checksum does not match; {saved:,} of 50,000 rows saved"
    assert repaired.lost == (Finding(name, why, first, last),)
    (aside,) = repaired.aside
    assert (lake / aside).read_bytes() == data


def test_damage_in_two_row_groups_leaves_the_one_between(lake: Path) -> None:
    before = contents(lake)
    path = the_file(lake)
    data = bytearray(path.read_bytes())
    for group, column in ((0, "id"), (2, "seq")):
        at = column_bytes(path, group, column)
        data[at : at + 8] = bytes(8)
    path.write_bytes(data)
    lost, repaired = mended(lake, before)
    assert lost == {*range(1, GROUP + 1), *range(2 * GROUP + 1, LAKE + 1)}
    assert [(each.first, each.last) for each in repaired.lost] == [(1, GROUP), (2 * GROUP + 1, LAKE)]


def gone(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_its_end(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-8:-4] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "why"),
    [(gone, "the file is missing"), (truncated, "bytes instead of"), (without_its_end, "its checksum does not match")],
)
def test_a_file_that_cannot_be_opened_is_lost_and_nothing_else(
    lake: Path, damage: Callable[[Path], None], why: str
) -> None:
    before = contents(lake)
    damage(the_file(lake))
    (finding,) = verify(lake).findings
    assert why in finding.why
    lost, _ = mended(lake, before)
    assert lost == set(range(1, LAKE + 1))


def test_a_damaged_file_of_fates_costs_no_message(directory: Path) -> None:
    before = contents(directory)
    path = the_file(directory, "fates")
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)
    lost, repaired = mended(directory, before)
    assert lost == set()
    (loss,) = repaired.lost
    assert loss.where == path.relative_to(directory).as_posix()
    assert (loss.first, loss.last) == (0, 0), "the numbers of fates are no numbers of messages"


def test_files_of_the_same_name_are_put_aside_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message with one fate: both files are named after the same numbers. Also if no file has two names."""

    async def life() -> None:
        with Journal(tmp_path, JournalSettings(sync=Sync.SYSTEM, seal=False)) as journal:
            async with tl.connect("memory:", journal=journal) as bus, bus.subscribe("t") as messages:
                await bus.publish("t", b"one")
                assert await messages.recv() is not None
                await bus.flush()
            journal.seal(everything=True)

    asyncio.run(life())
    both = [the_file(tmp_path, kind) for kind in ("messages", "fates")]
    assert both[0].name == both[1].name
    for path in both:
        path.write_bytes(b"PAR1" + bytes(path.stat().st_size))

    def link(*_: object) -> None:
        raise PermissionError("this file system has no second names")

    monkeypatch.setattr("os.link", link)
    repaired = repair(tmp_path)
    assert len(set(repaired.aside)) == 2
    assert all((tmp_path / name).stat().st_size > 4 for name in repaired.aside)
    assert verify(tmp_path).good


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE files SET checksum = checksum + 1",
        "UPDATE files SET bytes = bytes + 1",
        "UPDATE files SET rows = rows - 1",
        "UPDATE files SET first = first + 1",
        "UPDATE files SET last = last + 1",
        "UPDATE files SET path = 'messages/date=2000-01-01/none.parquet'",
        "UPDATE files SET kind = 'massages'",
        "DELETE FROM file_topics",
        "UPDATE file_topics SET count = count + 1",
        "UPDATE file_topics SET topic = 'another'",
        "UPDATE file_topics SET first = first - 1",
    ],
)
def test_a_wrong_word_about_a_whole_file_costs_nothing(directory: Path, statement: str) -> None:
    before = contents(directory)
    which = "topic = 'bulk'" if "file_topics" in statement else "kind = 'messages'"
    change(directory, f"{statement} WHERE {which}")
    assert not verify(directory).good
    lost, repaired = mended(directory, before)
    assert (lost, named(repaired.lost)) == (set(), set())


def test_a_file_whose_name_says_other_numbers_than_its_rows_is_found(directory: Path) -> None:
    before = contents(directory)
    path = the_file(directory)
    wrong = path.with_name(f"{1:020d}-{10**6:020d}.parquet")
    path.rename(wrong)
    for table in ("files", "file_topics"):
        change(
            directory, f"UPDATE {table} SET path = replace(path, '{path.name}', '{wrong.name}') WHERE path LIKE 'm%'"
        )
    (finding,) = verify(directory).findings
    assert "its name has other numbers" in finding.why
    lost, repaired = mended(directory, before)
    assert (lost, named(repaired.lost)) == (set(), set())
    assert path.exists()
    assert not wrong.exists()


def test_files_that_the_journal_has_forgotten_are_known_again_those_that_were_joined_are_not(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    for _ in range(8):
        fill(journal, 5, 10, "a", "b")
        journal.seal(everything=True)
    assert journal.tender.join() == 8
    fill(journal, 5, 10)
    journal.seal(everything=True)
    fill(journal, 5, 10)
    journal.close()
    before = contents(tmp_path)
    assert len(before) == 500
    assert len([*tmp_path.glob("messages/*/*.parquet")]) == 10, "those that were joined are still there"
    pages = Pages(tmp_path)
    pages.overwrite(pages.roots["files"])
    pages.write()
    lost, repaired = mended(tmp_path, before)
    assert lost == set()
    assert len([name for name in repaired.aside if name.endswith(".parquet")]) == 8


# Around it


def test_a_sound_journal_is_good_and_a_repair_changes_nothing(directory: Path) -> None:
    before = contents(directory)
    counted = verify(directory)
    assert (counted.good, counted.quarantined) == (True, 0)
    assert counted.messages + counted.sealed_messages == len(before)
    assert (counted.batches, counted.messages) == (len(Pages(directory).batches), len(before) - counted.sealed_messages)
    assert repair(directory) == Repaired((), ())
    assert verify(directory) == counted
    assert contents(directory) == before
    assert not (directory / "damaged").exists()


def test_progress_is_told_up_to_the_end(directory: Path) -> None:
    told: list[tuple[int, int]] = []
    counted = verify(directory, lambda done, of: told.append((done, of)))
    of = counted.batches + counted.files
    assert told == [(done, of) for done in range(1, of + 1)]


def test_a_file_that_is_replaced_and_deleted_while_it_verifies_is_no_damage(tmp_path: Path) -> None:
    journal = journal_in(tmp_path, replaced_s=0.0)
    for _ in range(8):
        fill(journal, 1, 10)
        journal.seal(everything=True)
    done: list[int] = []

    def meanwhile(at: int, of: int) -> None:
        if not done:
            done.append(journal.tender.join())
            done.append(journal.tender.forget_replaced())

    verified = verify(tmp_path, meanwhile)
    assert done == [8, 8]
    assert (verified.findings, verified.sealed_messages) == ((), 80)
    assert verify(tmp_path).files == 1
    journal.close()


def test_a_journal_is_repaired_only_by_who_has_it_for_itself(directory: Path) -> None:
    with Journal(directory, threaded=False):
        with pytest.raises(tl.JournalLocked) as refused:
            repair(directory)
        assert verify(directory).good
    assert refused.value.pid == os.getpid()
    assert repair(directory) == Repaired((), ())


def test_where_no_journal_is_none_is_made(tmp_path: Path) -> None:
    for work in (repair, verify):
        with pytest.raises(tl.JournalUnusable, match="there is no journal here"):
            work(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_journal_of_a_newer_version_is_left_alone(directory: Path) -> None:
    change_version = "PRAGMA user_version = 99"
    with contextlib.closing(sqlite3.connect(directory / "journal.db")) as database:
        database.execute(change_version)
    data = (directory / "journal.db").read_bytes()
    for work in (repair, verify):
        with pytest.raises(tl.JournalUnusable, match="upgrade Trunkline"):
            work(directory)
    assert (directory / "journal.db").read_bytes() == data
