"""Reading across journal and lake: by topic, number and time, without gaps or duplicates during maintenance."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trunkline as tl
from tests.journal.journals import NS, Clock, fail_on_damage, fill, journal_in, message, seqs, store
from trunkline.errors import InvalidTopic, JournalDamaged
from trunkline.journal import Journal, Reader, Retention, layout
from trunkline.journal import reader as journal_reader
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.sealed import File
from trunkline.topic import matches

TOPICS = ("a", "a.b", "a.c", "b.c")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    with journal_in(tmp_path, clock, seal_rows=10, replaced_s=0) as journal:
        yield journal


def sealed_not_at_all(journal: Journal, write: Callable[[], list[tl.Message]]) -> list[tl.Message]:
    return write() + write()


def sealed_wholly(journal: Journal, write: Callable[[], list[tl.Message]]) -> list[tl.Message]:
    written = write() + write()
    journal.seal(everything=True)
    return written


def sealed_half(journal: Journal, write: Callable[[], list[tl.Message]]) -> list[tl.Message]:
    written = write()
    journal.seal(everything=True)
    return written + write()


PLACES = [sealed_not_at_all, sealed_wholly, sealed_half]


def ask(journal: Journal, *, arrow: bool, **wanted: Any) -> list[tl.Message]:
    with Reader(journal.directory, on_damage=fail_on_damage) as reader:
        if not arrow:
            return list(reader.messages(**wanted))
        batches = list(reader.arrow(**wanted))
        assert all(batch.num_rows and batch.schema.equals(layout.MESSAGES) for batch in batches)
        return [each for batch in batches for each in layout.to_messages(batch)]


@pytest.mark.parametrize("arrow", [False, True], ids=["messages", "arrow"])
@pytest.mark.parametrize("place", PLACES)
def test_by_topic_number_and_time(
    journal: Journal, clock: Clock, place: Callable[..., list[tl.Message]], arrow: bool
) -> None:
    def write() -> list[tl.Message]:
        found = []
        for topic in TOPICS:
            clock.pass_s(10)
            found += fill(journal, 1, 3, topic)
        return found

    start_ns = clock.now_ns
    written = place(journal, write)
    assert seqs(written) == list(range(1, 25))
    assert ask(journal, arrow=arrow) == written
    for pattern in (">", "*", "a.*", "*.c", "a", "b.>", "c", "a.b"):
        fitting = [each for each in written if matches(pattern, each.topic)]
        assert ask(journal, arrow=arrow, pattern=pattern) == fitting, pattern
        for first, last in ((2, 20), (5, 5), (24, 99), (25, None), (13, 12)):
            within = [each for each in fitting if first <= each.seq <= (last or 99)]
            assert ask(journal, arrow=arrow, pattern=pattern, first=first, last=last) == within
    times = sorted({each.timestamp_ns for each in written})
    for since_ns, until_ns in itertools.combinations([start_ns, *times, clock.now_ns + NS], 2):
        within = [each for each in written if since_ns <= each.timestamp_ns < until_ns]
        since, until = since_ns / NS, until_ns / NS
        assert ask(journal, arrow=arrow, since=since, until=until) == within
        assert ask(
            journal,
            arrow=arrow,
            since=datetime.fromtimestamp(since, UTC),
            until=datetime.fromtimestamp(until, UTC),
            first=4,
            pattern="a.>",
        ) == [each for each in within if each.seq >= 4 and each.topic in ("a.b", "a.c")]


@pytest.mark.parametrize("place", PLACES)
def test_some_columns_only(journal: Journal, place: Callable[..., list[tl.Message]]) -> None:
    written = place(journal, lambda: fill(journal, 2, 3, "a", "b"))
    with Reader(journal.directory) as reader:
        batches = list(reader.arrow("b", first=2, columns=["payload", "seq"]))
    assert {tuple(batch.schema.names) for batch in batches} == {("payload", "seq")}
    assert [row["seq"] for batch in batches for row in batch.to_pylist()] == [
        each.seq for each in written if each.topic == "b"
    ]


def test_a_pattern_is_checked(journal: Journal) -> None:
    with Reader(journal.directory) as reader, pytest.raises(InvalidTopic):
        list(reader.messages("a..b"))


def test_where_there_is_no_journal_nobody_reads(tmp_path: Path) -> None:
    with pytest.raises(JournalUnusable, match="there is no journal"):
        Reader(tmp_path / "nowhere")


@pytest.mark.parametrize(("count", "size"), [(25_000, 1), (30, 1_000_000)], ids=["many", "large"])
def test_a_large_batch_becomes_several_rows(journal: Journal, count: int, size: int) -> None:
    written = fill(journal, 1, count, payload=b"x" * size)
    rows = journal.reader.query("SELECT first, last, length(body) FROM batches ORDER BY first")
    assert len(rows) >= 3
    assert max(last - first + 1 for first, last, _ in rows) <= 10_000
    assert max(bytes for _, _, bytes in rows) < 10_000_000
    assert seqs(written) == list(range(1, count + 1))
    assert list(journal.reader.messages()) == written
    assert sum(batch.num_rows for batch in journal.reader.arrow(columns=["seq"])) == count


# While things move


def step_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a reader ends after a row: otherwise only millions of messages would take several steps."""
    monkeypatch.setattr(journal_reader, "STEP_BYTES", 1)


def nothing(journal: Journal) -> None:
    """The reader is not disturbed."""


def seal(journal: Journal) -> None:
    journal.seal(everything=True)


def seal_and_join(journal: Journal) -> None:
    journal.seal(everything=True)
    journal.tender.join()


def seal_join_and_forget(journal: Journal) -> None:
    seal_and_join(journal)
    journal.tender.forget_replaced()


def write_more(journal: Journal) -> None:
    fill(journal, 2, 3, "a", "b")


def everything(journal: Journal) -> None:
    write_more(journal)
    seal_join_and_forget(journal)


MOVES = [nothing, seal, seal_join_and_forget, everything]


def read_on(journal: Journal, arrow: bool) -> Iterator[int]:
    with Reader(journal.directory, on_damage=fail_on_damage) as reader:
        if arrow:
            for batch in reader.arrow():
                yield from batch.column("seq").to_pylist()
        else:
            yield from seqs_of(reader.messages())


def seqs_of(messages: Iterator[tl.Message]) -> Iterator[int]:
    return (each.seq for each in messages)


@pytest.mark.parametrize("arrow", [False, True], ids=["messages", "arrow"])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("taken", [1, 10])
def test_what_moves_is_read_once(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, move: Callable[[Journal], None], taken: int, arrow: bool
) -> None:
    step_by_row(monkeypatch)
    fill(journal, 3, 3, "a", "b")
    journal.seal(everything=True)
    fill(journal, 4, 3, "a", "b")
    reading = read_on(journal, arrow)
    found = list(itertools.islice(reading, taken))
    move(journal)
    found += reading
    assert found[:21] == list(range(1, 22))
    assert found == sorted(set(found)), "something came twice, or out of order"


MOMENTS = ["write", "write", "seal", "seal all", "join", "open", "read", "read", "read"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moments=st.lists(st.tuples(st.sampled_from(MOMENTS), st.integers(1, 4)), min_size=5, max_size=25))
def test_what_moves_at_any_time_is_read_once(
    moments: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several readers, each at its own position, during all operations of a journal, in any order."""
    step_by_row(monkeypatch)
    with journal_in(tmp_path_factory.mktemp("journal"), seal_rows=8) as journal, contextlib.ExitStack() as stack:
        written = fill(journal, 4, 2, "a", "b")
        readers: list[tuple[str, int, Iterator[int], list[int]]] = []
        for moment, number in [("open", 1), *moments]:
            match moment:
                case "write":
                    written += fill(journal, number, number, "a", "b")
                case "seal":
                    journal.seal()
                case "seal all":
                    journal.seal(everything=True)
                case "join":
                    journal.tender.join()
                case "open":
                    pattern = (">", "a", "*", "b")[number - 1]
                    reader = stack.enter_context(Reader(journal.directory, on_damage=fail_on_damage))
                    readers.append((pattern, number, seqs_of(reader.messages(pattern, first=number)), []))
                case "read":
                    for _, _, reading, found in readers:
                        found += itertools.islice(reading, number)
        for pattern, first, reading, found in readers:
            found += reading
            wanted = [each.seq for each in written if each.seq >= first and matches(pattern, each.topic)]
            # Who came to the end before more was written has ended.
            assert found == wanted[: len(found)]


def test_what_retention_takes_meanwhile_is_a_gap_and_nothing_else(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_by_row(monkeypatch)
    rule = Retention(topics="b", max_count=1)
    with journal_in(tmp_path, clock, retention=(rule,)) as journal:
        written = fill(journal, 12, 2, "a", "b")
        reading = read_on(journal, arrow=False)
        found = list(itertools.islice(reading, 5))
        journal.tender.retain()
        journal.seal(everything=True)
        found += reading
        gone = {each.seq for each in written if each.topic == "b"} - set(found)
        assert found == sorted(set(found))
        assert set(found) | gone == set(seqs(written))
        assert {each.seq for each in written if each.topic == "a"} <= set(found)


# For subscribers that catch up


@pytest.mark.parametrize("place", PLACES)
def test_some_after_a_number(journal: Journal, place: Callable[..., list[tl.Message]]) -> None:
    written = place(journal, lambda: fill(journal, 4, 3, "a", "b"))
    wanted = [each for each in written if each.topic == "a"]
    for limit in (1, 4, 100):
        found: list[tl.Message] = []
        after = 0
        while True:
            more, upto = journal.reader.some_after("a", after, limit)
            if upto == after:
                break
            assert [each for each in wanted if after < each.seq <= upto] == more
            found += more
            after = upto
        assert found == wanted
        assert after == written[-1].seq


@pytest.mark.parametrize("place", PLACES)
def test_some_by_number(journal: Journal, place: Callable[..., list[tl.Message]]) -> None:
    written = place(journal, lambda: fill(journal, 4, 3, "a", "b"))
    asked = [2, 3, 7, 13, 24]
    assert journal.reader.some([*asked, 99]) == [each for each in written if each.seq in asked]
    assert journal.reader.some([]) == []
    assert journal.reader.last() == 24


@pytest.mark.parametrize("place", PLACES)
def test_the_last_before_a_time(journal: Journal, clock: Clock, place: Callable[..., list[tl.Message]]) -> None:
    accepted: dict[int, int] = {}

    def write() -> list[tl.Message]:
        found = []
        for _ in range(3):
            clock.pass_s(10)
            more = fill(journal, 1, 2)
            accepted[more[-1].seq] = clock.now_ns
            found += more
        return found

    start_ns = clock.now_ns
    place(journal, write)
    assert journal.reader.last_before(start_ns) == 0
    for last, at_ns in accepted.items():
        assert journal.reader.last_before(at_ns) == last - 2
        assert journal.reader.last_before(at_ns + 1000) == last


# Lookups


@pytest.mark.parametrize("place", PLACES)
def test_how_many_there_are_beyond_a_number(journal: Journal, place: Callable[..., list[tl.Message]]) -> None:
    written = place(journal, lambda: fill(journal, 6, 2, *TOPICS))
    for pattern in (">", "a", "a.*", "c"):
        for after in (0, 1, 5, 12, 13, 23, 24, 99):
            wanted = [each for each in written if matches(pattern, each.topic) and each.seq > after]
            assert journal.reader.count(pattern, after) == len(wanted), f"{pattern} beyond {after}"


@pytest.mark.parametrize("place", PLACES)
def test_the_last_ones(journal: Journal, place: Callable[..., list[tl.Message]]) -> None:
    written = place(journal, lambda: fill(journal, 15, 2, *TOPICS))
    for pattern in (">", "a", "a.*", "c"):
        wanted = [each for each in written if matches(pattern, each.topic)]
        for count in (0, 1, 3, 25, 99):
            assert journal.reader.tail(pattern, count) == wanted[len(wanted) - min(count, len(wanted)) :]


# What became of a message


@pytest.mark.parametrize("place", PLACES)
def test_a_message_is_found_by_its_id(journal: Journal, clock: Clock, place: Callable[..., list[tl.Message]]) -> None:
    ids = iter([clock.world.uuid7() for _ in range(2)] + ["by hand", "höme made"] + [str(n) for n in range(20)])

    def write() -> list[tl.Message]:
        return store(journal, [[message("a", b"1", id=next(ids), timestamp_ns=clock.now_ns) for _ in range(3)]])

    written = place(journal, write)
    for each in written:
        assert journal.reader.find(each.id) == each
    assert journal.reader.find("by hand") is not None
    assert journal.reader.find("y han") is None
    assert journal.reader.find("unknown") is None
    assert journal.reader.find(clock.world.uuid7()) is None


@pytest.mark.parametrize("place", PLACES)
def test_an_id_that_names_its_time_is_looked_for_there(
    journal: Journal, place: Callable[..., list[tl.Message]]
) -> None:
    at_ns = 1_750_000_000 * NS

    def made_at(ns: int, tail: int) -> str:
        digits = f"{ns // 1_000_000:012x}"
        return f"{digits[:8]}-{digits[8:]}-7000-8000-{tail:012x}"

    # Its own time and that of its id differ by an hour: only a search everywhere finds it.
    far = made_at(at_ns, 2)
    place(journal, lambda: store(journal, [[message("a", id=far, timestamp_ns=at_ns + 3600 * NS)]]))
    assert journal.reader.find(far, everywhere=False) is None
    assert journal.reader.find(far) is not None
    near = made_at(at_ns + 3600 * NS, 1)
    store(journal, [[message("a", id=near, timestamp_ns=at_ns + 3601 * NS)]])
    assert journal.reader.find(near, everywhere=False) is not None


@pytest.mark.parametrize("sealed", [False, True], ids=["journal", "lake"])
def test_fates_are_found_wherever_they_are(journal: Journal, clock: Clock, sealed: bool) -> None:
    written = fill(journal, 1, 5, "a.b")
    ledger = journal.ledger
    for name, pattern, fate, first, last, reason in (
        ("range", "a.*", tl.Fate.DELIVERED, 1, 4, ""),
        ("elsewhere", "b.*", tl.Fate.DELIVERED, 1, 5, ""),
        ("both", "a.b", tl.Fate.DELIVERED, 1, 5, ""),
        ("both", "a.b", tl.Fate.DEAD, 3, 3, "it broke"),
        ("later", "a.b", tl.Fate.DEAD, 3, 3, "it broke"),
        ("later", "a.b", tl.Fate.DELIVERED, 3, 3, ""),
        ("late", "a.b", tl.Fate.DROPPED, 5, 5, "left"),
    ):
        ledger.fate(name, pattern, fate, first, last, last - first + 1, reason, clock.now_ns)
        clock.pass_s(0.123457)
    journal.intake.flush()
    if sealed:
        journal.seal(everything=True)
        assert journal.reader.query("SELECT count(*) FROM fates") == [(0,)]
    told = {
        each.seq: {outcome.subscriber: (outcome.fate, outcome.reason) for outcome in journal.reader.outcomes(each)}
        for each in written
    }
    well = (tl.Fate.DELIVERED, "")
    assert told[1] == {"range": well, "both": well}
    assert told[3] == {"range": well, "both": (tl.Fate.DEAD, "it broke"), "later": well}
    assert told[5] == {"both": well, "late": (tl.Fate.DROPPED, "left")}


def sealed_fates(journal: Journal, files: int) -> list[tl.Message]:
    """A message and a fate a file."""
    written = []
    for _ in range(files):
        (one,) = fill(journal, 1)
        journal.ledger.fate("x", "a", tl.Fate.DELIVERED, one.seq, one.seq, 1, "", journal.world.time_ns())
        journal.intake.flush()
        journal.seal(everything=True)
        written.append(one)
    return written


def test_a_file_of_fates_that_cannot_speak_of_a_message_is_not_read(journal: Journal) -> None:
    written = sealed_fates(journal, 3)
    first, *others = journal.reader.files("fates")
    assert len(others) == 2
    for file in others:
        # Damage in its rows: found by readers of more than the footer.
        data = bytearray((journal.directory / file.path).read_bytes())
        data[6] ^= 255
        (journal.directory / file.path).write_bytes(data)
    told: list[JournalDamaged] = []
    with Reader(journal.directory, on_damage=told.append) as reader:
        assert [each.number for each in reader.fates_of(written[0])] == [first.first]
        assert told == []
        assert reader.fates_of(written[1]) == []
        assert [damage.where for damage in told] == [others[0].path]


class Overtaken(Reader):
    """The files are joined and deleted after the reader got their names, and before it opens them."""

    def __init__(self, journal: Journal, on_damage: Callable[[JournalDamaged], None]) -> None:
        super().__init__(journal.directory, on_damage=on_damage)
        self._owner: Journal | None = journal

    def files(self, kind: str = "messages") -> list[File]:
        found = super().files(kind)
        owner, self._owner = self._owner, None
        if owner is not None:
            assert owner.tender.join() >= len(found)
            for file in found:
                (self.directory / file.path).unlink()
        return found


def test_fates_are_found_though_their_file_is_replaced_and_deleted_meanwhile(journal: Journal) -> None:
    written = sealed_fates(journal, 8)
    told: list[JournalDamaged] = []
    with Overtaken(journal, told.append) as reader:
        assert [each.number for each in reader.fates_of(written[1])] == [2]
    assert told == []


def test_a_sealed_fate_keeps_its_microsecond(journal: Journal, clock: Clock) -> None:
    (written,) = fill(journal, 1)
    times = []
    for _ in range(200):
        clock.pass_s(0.001001)
        times.append(clock.now_ns)
        journal.ledger.fate("x", "a", tl.Fate.DEAD, written.seq, written.seq, 1, "", clock.now_ns)
    journal.intake.flush()
    journal.seal(everything=True)
    assert [fate.at_ns // 1000 for fate in journal.reader.fates_of(written)] == [at_ns // 1000 for at_ns in times]


# Damage


def test_a_damaged_row_is_told_and_skipped(journal: Journal) -> None:
    fill(journal, 3, 2)
    damage_row(journal, 3)
    told: list[JournalDamaged] = []
    with Reader(journal.directory, on_damage=told.append) as reader:
        assert list(seqs_of(reader.messages())) == [1, 2, 5, 6]
        assert [seq for batch in reader.arrow() for seq in batch.column("seq").to_pylist()] == [1, 2, 5, 6]
    assert [(damage.first, damage.last) for damage in told] == [(3, 4), (3, 4)]


def damage_row(journal: Journal, first: int) -> None:
    journal.writer.call(
        lambda database: database.execute("UPDATE batches SET body = zeroblob(9) WHERE first = ?", (first,))
    )


def test_the_journal_puts_damage_aside_once(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    fill(journal, 3, 2)
    damage_row(journal, 3)
    for _ in range(2):
        assert list(seqs_of(journal.reader.messages())) == [1, 2, 5, 6]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "messages 3 to 4 (a) are damaged" in caplog.text
    assert journal.reader.query("SELECT first, last FROM quarantine") == [(3, 4)]
    assert journal.seal(everything=True) == 4
    assert list(seqs_of(journal.reader.messages())) == [1, 2, 5, 6]


def test_sealing_leaves_out_what_is_damaged(journal: Journal) -> None:
    fill(journal, 3, 2)
    damage_row(journal, 3)
    assert journal.seal(everything=True) == 4
    assert journal.reader.query("SELECT first, last FROM quarantine") == [(3, 4)]
    assert list(seqs_of(journal.reader.messages())) == [1, 2, 5, 6]


def test_no_statement_numbers_its_placeholders() -> None:
    """Early releases of Python 3.12 take `?1` for a name, and warn: https://github.com/python/cpython/issues/117995."""
    folder = Path(tl.__file__).parent
    numbered = {path.name for path in folder.rglob("*.py") if re.search(r"\?\d", path.read_text(encoding="utf-8"))}
    assert numbered == set()
