"""Compares the output of killed processes with the content of the journal."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple

import trunkline as tl
from tests.journal.processes import Child
from trunkline.journal import Reader, lake
from trunkline.journal.cursor import unpack
from trunkline.journal.explain import FATE_COLUMNS, RecordedFate
from trunkline.topic import matches

DELIVERED = tl.Fate.DELIVERED.value
DEAD = tl.Fate.DEAD.value


class Stored(NamedTuple):
    seq: int
    id: str
    topic: str
    payload: str


class Books:
    """All promises so far, over all runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.published: dict[str, tuple[str, str]] = {}
        """Acknowledged publishes by id."""
        self.settled: dict[int, str] = {}
        """Fates of the durable subscriber that were on disk before the process died, by number."""
        self._attempts: dict[int, int] = {}
        self._new: list[str] = []
        """Published since the last look."""
        self._seen = 0

    def hear(self, child: Child) -> None:
        """Record the output of a process before it ended, and whether its predecessor was forgotten."""
        complaints = child.complaints()
        assert "Traceback" not in complaints, complaints
        assert "ERROR" not in complaints, complaints
        events: list[tuple[int, str, int]] = []
        done: set[int] = set()
        flushed = 0
        for word, *rest in child.lines():
            match word:
                case "p":
                    topic, payload, message_id = rest
                    assert message_id not in self.published
                    self.published[message_id] = (topic, payload)
                    self._new.append(message_id)
                case "r":
                    seq, attempts = int(rest[0]), int(rest[2])
                    assert seq not in self.settled, f"{seq} came again, after it was {self.settled[seq]}"
                    assert seq not in done, f"{seq} came again in the same life"
                    assert attempts >= self._attempts.get(seq, 0), f"{seq} forgot {self._attempts[seq]} attempts"
                case "a" | "n" | "x":
                    seq = int(rest[0])
                    events.append((seq, word, int(rest[1])))
                    if word != "n":
                        done.add(seq)
                case "f":
                    flushed = int(rest[0])
        for seq, word, attempts in events[:flushed]:
            if word == "n":
                self._attempts[seq] = attempts
            else:
                self.settled[seq] = DELIVERED if word == "a" else DEAD

    def check_new(self) -> None:
        """Messages since the last check: in order, no number or id twice, and no promised one is missing.

        Everything a life wrote has higher numbers than what was there before it.
        """
        with _reader(self.directory) as reader:
            found = messages(reader, self._seen + 1)
        check_order(found)
        ids = {each.id: (each.topic, each.payload) for each in found}
        missing = [name for name in self._new if name not in ids]
        assert not missing, f"{len(missing)} acknowledged messages are gone"
        assert all(ids[name] == self.published[name] for name in self._new)
        self._new.clear()
        self._seen = found[-1].seq if found else self._seen

    def check_all(self) -> list[Stored]:
        """Every acknowledged message is stored once, as it was published, in each way of reading."""
        with _reader(self.directory) as reader:
            found = messages(reader)
            batches = list(reader.arrow())
        check_order(found)
        columns = ("seq", "id", "topic", "payload")
        rows = [row for batch in batches for row in zip(*(batch[name].to_pylist() for name in columns), strict=True)]
        assert [Stored(seq, name, topic, payload.decode()) for seq, name, topic, payload in rows] == found
        there = {each.id: (each.topic, each.payload) for each in found}
        assert all(there.get(name) == said for name, said in self.published.items())
        return found

    def check_fates(self, found: list[Stored], name: str, pattern: str) -> dict[int, str]:
        """The fates in the journal: one for each message, within the messages read. Returns them by number."""
        with _reader(self.directory) as reader:
            rows = [row for row in fates(reader) if row.subscriber == name]
            cursors = reader.query("SELECT high, pending FROM cursors WHERE name = ?", (name,))
            letters = {seq for (seq,) in reader.query("SELECT seq FROM dead_letters WHERE subscriber = ?", (name,))}
        fitting = [each.seq for each in found if matches(pattern, each.topic)]
        by_fate = fates_by_number(rows, fitting)
        assert letters == {seq for seq, fate in by_fate.items() if fate == DEAD}
        for high, pending in cursors:
            out = set(unpack(pending))
            assert all(row.last <= high for row in rows)
            assert not out & by_fate.keys()
            assert by_fate.keys() | out == {seq for seq in fitting if seq <= high}
        return by_fate


def _reader(directory: Path) -> Reader:
    return Reader(directory, on_damage=fail)


def fail(damage: tl.JournalDamaged) -> None:
    raise AssertionError(f"nothing was damaged, and yet: {damage}")


def messages(reader: Reader, first: int = 1) -> list[Stored]:
    found = reader.messages(first=first)
    return [Stored(message.seq, message.id, message.topic, message.payload.decode()) for message in found]


def check_order(found: list[Stored]) -> None:
    numbers = [each.seq for each in found]
    assert numbers == sorted(set(numbers)), "numbers do not rise"
    assert len({each.id for each in found}) == len(found), "a message is there twice"
    assert len({each.payload for each in found}) == len(found), "a message is there under two ids"


def fates(reader: Reader) -> list[RecordedFate]:
    """Every row of fates, from the lake and from the journal, in order."""
    sealed = [
        RecordedFate(**{**row, "at_ns": 0})
        for file in reader.files("fates")
        for batch in lake.read(reader.directory, file)
        for row in batch.drop_columns(["time"]).to_pylist()
    ]
    found = [
        *sealed,
        *(RecordedFate(*row) for row in reader.query(f"SELECT {FATE_COLUMNS} FROM fates ORDER BY number")),
    ]
    numbers = [each.number for each in found]
    assert numbers == sorted(set(numbers)), "fates are there twice"
    return found


def fates_by_number(rows: list[RecordedFate], fitting: list[int]) -> dict[int, str]:
    """The fate of each matching message: a row covers all from its first to its last, and no two rows overlap."""
    by_fate: dict[int, str] = {}
    for row in rows:
        covered = fitting[bisect_left(fitting, row.first) : bisect_right(fitting, row.last)]
        assert len(covered) == row.count, f"{row} is about {len(covered)} messages"
        twice = [seq for seq in covered if seq in by_fate]
        assert not twice, f"{twice[0]} has two fates"
        by_fate.update(dict.fromkeys(covered, row.fate))
    return by_fate
