"""Random journals with a lake, the rows a Reader finds in them, and ways to damage them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import trunkline as tl
from tests.journal.journals import Clock, journal_in, message, store
from trunkline.journal import Journal, Reader, lake
from trunkline.journal.ledger import FATE
from trunkline.journal.sealed import File

TOPICS = ("orders.placed", "orders.eu.paid", "ticks", "chat.grüße.木", "orders.eu.placed")
FATES = ("delivered", "filtered", "dead")


class Randomly:
    """Operations on a journal, repeated at random."""

    def __init__(self, journal: Journal, clock: Clock, seed: int) -> None:
        self._journal = journal
        self._clock = clock
        self._chance = random.Random(seed)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            step = self._chance.choice((self._publish, self._publish, self._settle, self._seal, self._pass, self._fail))
            step()

    def _publish(self) -> None:
        chance = self._chance
        store(
            self._journal,
            [[self._message(topic) for _ in range(chance.randint(1, 9))] for topic in chance.choices(TOPICS, k=3)],
        )

    def _message(self, topic: str) -> tl.Message:
        chance = self._chance
        fields: dict[str, Any] = {
            "headers": chance.choice((None, {}, {"ä": "木", "": "x"})),
            "ttl_s": chance.choice((None, 1.5)),
            "correlation_id": chance.choice((None, "k\N{GRINNING FACE}")),
            "request_id": chance.choice((None, "r1")),
            "priority": chance.choice((0, 50, 100)),
            "sender": chance.choice(("shop", "木")),
            "requires_ack": chance.random() < 0.5,
        }
        skew_ns = chance.choice((0, 0, -(10**15), 999, 10**12))
        payload = chance.choice((b"", b"\xff\x00", b"{}", chance.randbytes(40)))
        own_ns = self._clock.now_ns + skew_ns
        return message(topic, payload, id=f"{chance.getrandbits(64):x}", timestamp_ns=own_ns, **fields)

    def _settle(self) -> None:
        chance = self._chance
        last = self._journal.intake.numbers.last
        rows = [
            (chance.choice(("a", "b")), "orders.>", chance.choice(FATES), 1, last, last, "why ü", self._clock.now_ns)
            for _ in range(chance.randint(1, 5))
        ]
        self._journal.writer.call(lambda database: database.executemany(FATE, rows)).result()

    def _seal(self) -> None:
        self._journal.seal(everything=True)
        if self._chance.random() < 0.4:
            self._journal.tender.join()

    def _pass(self) -> None:
        self._clock.pass_s(self._chance.choice((0.001, 60, 30_000)))

    def _fail(self) -> None:
        """Numbers that were assigned, but not stored."""
        self._journal.intake.numbers.last += self._chance.randint(1, 4)


def random_journal(directory: Path, seed: int, steps: int = 30) -> Path:
    """The last step is a publish, which stays unsealed."""
    clock = Clock()
    with journal_in(directory, clock, seal_rows=40) as journal:
        chance = Randomly(journal, clock, seed)
        chance.live(steps)
        chance._settle()
        chance._seal()
        chance._publish()
        chance._settle()
    return directory


def rows_of(batches: Iterable[pa.RecordBatch] | pa.Table) -> list[dict[str, Any]]:
    """Rows by their number, whatever they came in."""
    parts = [batches] if isinstance(batches, pa.Table) else batches
    found: list[dict[str, Any]] = [row for part in parts for row in part.to_pylist()]
    for row in found:
        if row.get("headers") is not None:
            row["headers"] = dict(row["headers"])
    return sorted(found, key=lambda row: row.get("seq") or row["number"])


def expected(directory: Path, pattern: str = ">", **wanted: Any) -> list[dict[str, Any]]:
    """The messages that a Reader finds."""
    with Reader(directory) as reader:
        return rows_of(reader.arrow(pattern, **wanted))


def expected_fates(directory: Path) -> list[dict[str, Any]]:
    """The fates as the tables and files have them."""
    from trunkline.journal import layout
    from trunkline.journal.explain import FATE_COLUMNS

    with Reader(directory) as reader:
        sealed = [batch for file in reader.files("fates") for batch in lake.read(directory, file)]
        return rows_of([*sealed, layout.of_fates(reader.query(f"SELECT {FATE_COLUMNS} FROM fates"))])


def files_of(directory: Path, kind: str = "messages") -> list[File]:
    with Reader(directory) as reader:
        return reader.files(kind)


def rewrite(directory: Path, file: File, table: pa.Table) -> None:
    """Another content for a listed file, as another version would have written it."""
    path = directory / file.path
    pq.write_table(table, path)
    with closing(sqlite3.connect(directory / "journal.db")) as database, database:
        database.execute(
            "UPDATE files SET bytes = ?, checksum = ? WHERE path = ?",
            (path.stat().st_size, lake.checksum_of(path), file.path),
        )


def flip(path: Path, at: int) -> None:
    """Flip one random bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
