"""Verifying: is everything there that was written, bit for bit? And saving what can be read when it is not."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline.clock import World
from trunkline.delivery.fates import Fate
from trunkline.delivery.requests import Why
from trunkline.errors import JournalDamaged, JournalUnusable
from trunkline.journal import database as files
from trunkline.journal.body import Row
from trunkline.journal.cursor import pack, unpack
from trunkline.journal.intake import MAX_ROW_MESSAGES
from trunkline.journal.journal import LAST
from trunkline.journal.ledger import decode_letter, decode_message, decode_story
from trunkline.journal.lock import Lock
from trunkline.journal.reader import COLUMNS, File
from trunkline.journal.settings import Sync

if TYPE_CHECKING:
    from trunkline.journal.lake import Sealed

Progress = Callable[[int, int], None]
"""Called with how many batches and files were looked at, of how many."""

Span = tuple[int, int]

ASIDE = "damaged"
"""The folder for what was replaced by what could be read of it."""
COPY = "old.db"
LAKE = ("messages", "fates")
MAX_COMPLAINTS = 10
PROBES = 256
"""So often an unreadable stretch is halved: what can be read in between is found if it is no smaller than that."""
BEYOND = 1_000_000
"""How far beyond the last number that is known a table is searched."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it was written. Numbers are 0 if no messages are concerned."""

    where: str
    why: str
    first: int = 0
    last: int = 0


class Verified(msgspec.Struct, frozen=True):
    """What was looked at, all of it as it was at one moment, and what is wrong with it."""

    batches: int = 0
    messages: int = 0
    files: int = 0
    sealed_messages: int = 0
    sealed_fates: int = 0
    quarantined: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def good(self) -> bool:
        return not self.findings


class Repaired(msgspec.Struct, frozen=True):
    """What a repair did: what is lost, by the numbers of the messages, and what was put aside."""

    lost: tuple[Finding, ...]
    aside: tuple[str, ...]


# Looking


def verify(directory: str | Path, progress: Progress = lambda done, of: None) -> Verified:
    """Look at every batch and every file, while others may write. Raises JournalUnusable if there is no journal."""
    folder = Path(directory)
    try:
        database = files.open_for_reading(folder)
    except JournalUnusable as error:
        if _is_newer(folder) or not (_is_damage(error) or any(_lake(folder))):
            raise
        return Verified(findings=(Finding(files.FILE, error.why),))
    with contextlib.closing(database):
        database.text_factory = _text
        # One moment for all of it: what is sealed meanwhile is not looked at twice, or counted nowhere.
        database.execute("BEGIN")
        findings = [Finding(files.FILE, text) for text in _complaints(database)]
        sealed, faulty = _files(database)
        findings += faulty
        batches, messages = _verify_batches(database, sealed, findings, progress)
        for table in _shapes():
            if table not in ("batches", "files", "quarantine"):
                findings += [finding for _, finding in _faults(database, table)]
        quarantined = _number(database, "SELECT count(*) FROM quarantine")
        shares = _shares(database)
        with contextlib.suppress(sqlite3.Error):
            database.execute("COMMIT")
        rows = dict.fromkeys(LAKE, 0)
        before = dict.fromkeys(LAKE, 0)
        for done, file in enumerate(sealed, batches + 1):
            progress(done, batches + len(sealed))
            rows[file.kind] += file.rows
            found = _look_into(folder, file, shares, before[file.kind])
            before[file.kind] = file.last
            if found is not None and _counts(database, file):
                findings.append(found)
    return Verified(
        batches, messages, len(sealed), rows["messages"], rows["fates"], quarantined, findings=tuple(findings)
    )


def _is_damage(error: JournalUnusable) -> bool:
    code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_newer(folder: Path) -> bool:
    """Whether it was written by a Trunkline that knows more: then it is not for this one to judge."""
    with contextlib.suppress(OSError), (folder / files.FILE).open("rb") as file:
        head = file.read(100)
        return head.startswith(b"SQLite format 3\0") and int.from_bytes(head[60:64], "big") > files.VERSION
    return False


def _text(data: bytes) -> str:
    # Text that is not UTF-8 is damage to be named, not an error that ends the reading.
    return data.decode(errors="surrogateescape")


def _complaints(database: sqlite3.Connection) -> list[str]:
    try:
        found = database.execute(f"PRAGMA integrity_check({MAX_COMPLAINTS})").fetchall()
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [line for (text,) in found if text != "ok" for line in str(text).splitlines()[:MAX_COMPLAINTS]]


def _number(database: sqlite3.Connection, query: str) -> int:
    try:
        return int(database.execute(query).fetchone()[0] or 0)
    except (sqlite3.Error, TypeError, ValueError):
        return 0


def _verify_batches(
    database: sqlite3.Connection, sealed: list[File], findings: list[Finding], progress: Progress
) -> tuple[int, int]:
    of = _number(database, "SELECT count(*) FROM batches") + len(sealed)
    covered = [(file.first, file.last) for file in sealed if file.kind == "messages"]
    last = 0
    batches = messages = 0
    scan = Scan(database, "batches", _end(database))
    for values in scan:
        batches += 1
        progress(min(batches, of), of)
        finding = _look_at(values)
        if finding is None and not scan.failed and values[0] <= last:
            finding = Finding(_place(values), "it overlaps the one before it", values[0], values[1])
        if finding is not None:
            findings.append(finding)
            continue
        last = values[1]
        messages += values[1] - values[0] + 1
        covered.append((values[0], values[1]))
    findings += _unread("batches", scan, covered)
    return batches, messages


def _place(values: tuple[Any, ...]) -> str:
    return f"batch {values[0]} on {str(values[2]).encode(errors='backslashreplace').decode()}"


def _look_at(values: tuple[Any, ...]) -> Finding | None:
    """What is wrong with a batch, if anything is."""
    why = _misfit("batches", values)
    if why is None:
        try:
            Row(*values).messages()
        except JournalDamaged as damage:
            why = damage.why
        else:
            return None
    first, last = (value if isinstance(value, int) else 0 for value in values[:2])
    concerned = (first, last) if 0 < first <= last else (0, 0)
    return Finding(_place(values), why, *concerned)


def _look_into(folder: Path, file: File, shares: dict[str, int], before: int = 0) -> Finding | None:
    """What is wrong with a sealed file, if anything is. `shares` is how many messages its topics have, by path."""
    from trunkline.journal import lake

    concerned = (file.first, file.last) if file.kind == "messages" else (0, 0)
    path = folder / file.path
    try:
        size = path.stat().st_size
        if file.first <= before:
            return Finding(file.path, "it overlaps the one before it", *concerned)
        if size != file.bytes:
            return Finding(file.path, f"it has {size:,} bytes instead of {file.bytes:,}", *concerned)
        if lake.checksum_of(path) != file.checksum:
            return Finding(file.path, "its checksum does not fit", *concerned)
    except FileNotFoundError:
        return Finding(file.path, "the file is gone", *concerned)
    except OSError as error:
        return Finding(file.path, f"it cannot be read: {error.strerror}", *concerned)
    if _written_down(path, file.kind) != (file.rows, file.first, file.last):
        return Finding(file.path, MISRECORDED)
    if file.kind == "messages" and shares.get(file.path) != file.rows:
        return Finding(file.path, MISRECORDED)
    return None


MISRECORDED = "the file is whole, but what the journal has written of it is wrong"


def _written_down(path: Path, kind: str) -> tuple[int, int, int]:
    """How many rows a whole file has, and its first and last number, by its own account."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        column = parquet.schema_arrow.names.index("seq" if kind == "messages" else "number")
        groups = [parquet.metadata.row_group(at).column(column).statistics for at in range(parquet.num_row_groups)]
        return parquet.metadata.num_rows, groups[0].min, groups[-1].max


def _counts(database: sqlite3.Connection, file: File) -> bool:
    """Whether it still counts: it may have been joined to others, and deleted, since the list of files was made."""
    query = "SELECT count(*) FROM files WHERE path = ? AND replaced_ns IS NULL"
    try:
        return bool(database.execute(query, (file.path,)).fetchone()[0])
    except sqlite3.DatabaseError:
        return True


def _lake(folder: Path) -> Iterator[Path]:
    for kind in LAKE:
        yield from folder.glob(f"{kind}/date=*/*.parquet")


# Tables


class Shape(NamedTuple):
    """What a table is made of."""

    names: tuple[str, ...]
    types: tuple[type, ...]
    required: tuple[bool, ...]
    key: tuple[str, ...]
    numbered: bool
    """Whether its key is a number, so that reading can go on beyond what is damaged."""


@cache
def _shapes() -> dict[str, Shape]:
    kinds: dict[str, type] = {"INTEGER": int, "TEXT": str, "BLOB": bytes}
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(files.TABLES)
        names = [name for (name,) in empty.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        shapes = {}
        for name in names:
            if name.startswith("sqlite_"):
                continue
            columns = empty.execute(f"PRAGMA table_info({name})").fetchall()
            key = tuple(column[1] for column in sorted(columns, key=lambda each: each[5]) if column[5])
            shapes[name] = Shape(
                tuple(column[1] for column in columns),
                tuple(kinds[column[2]] for column in columns),
                tuple(bool(column[3] or column[5]) for column in columns),
                key,
                len(key) == 1 and next(kinds[column[2]] for column in columns if column[5]) is int,
            )
    return shapes


class Scan:
    """Every row of a table that can be read, also beyond damaged pages. Where it met any, the order is not kept.

    Afterwards `gaps` are the keys, both ends not included, between which something could not be read; if the table has
    no numbers, `failed` alone says so.
    """

    def __init__(self, source: sqlite3.Connection, table: str, end: int) -> None:
        self._source = source
        self._table = table
        self._shape = _shapes()[table]
        self._end = end
        self.known = end - BEYOND
        """The last number that anything in the journal names."""
        self._broken = False
        self.failed = ""
        self.gaps: list[Span] = []

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._by_number() if self._shape.numbered else self._from_both_ends()

    def _by_number(self) -> Iterator[tuple[Any, ...]]:
        # Breadth first: what is readable between two damaged places is hit early, and then read as far as it goes.
        key = self._shape.key[0]
        todo = deque([(0, self._end + 1)])
        probes = PROBES
        while todo:
            low, high = todo.popleft()
            within = f"SELECT * FROM {self._table} WHERE {key} > ? AND {key} < ? ORDER BY {key}"
            for row in self._read(within, (low, high), rising=True):
                low = row[0]
                yield row
            if not self._broken:
                continue
            for row in self._read(f"{within} DESC", (low, high), rising=False):
                high = row[0]
                yield row
            probes -= 1
            if high - low <= 2 or probes < 0:
                self.gaps.append((low, high))
                continue
            middle = (low + high) // 2
            todo += [(low, middle + 1), (middle, high)]

    def _read(self, query: str, bounds: Span, *, rising: bool) -> Iterator[tuple[Any, ...]]:
        self._broken = False
        low, high = bounds
        try:
            for row in self._source.execute(query, bounds):
                # A page that was overwritten may show rows of anything.
                if not isinstance(row[0], int) or not low < row[0] < high:
                    raise sqlite3.DatabaseError(f"{row[0]!r} is out of order")
                low, high = (row[0], high) if rising else (low, row[0])
                yield row
        except sqlite3.Error as error:
            self._broken = True
            self.failed = str(error)

    def _from_both_ends(self) -> Iterator[tuple[Any, ...]]:
        order = ", ".join(self._shape.key)
        backwards = ", ".join(f"{name} DESC" for name in self._shape.key)
        at = [self._shape.names.index(name) for name in self._shape.key]
        seen = set()
        for direction in (order, backwards):
            try:
                for row in self._source.execute(f"SELECT * FROM {self._table} ORDER BY {direction}"):
                    key = tuple(row[index] for index in at)
                    if key in seen:
                        break
                    seen.add(key)
                    yield row
            except sqlite3.Error as error:
                self.failed = str(error)
            else:
                return


def _end(database: sqlite3.Connection) -> int:
    """A number beyond all that the journal has given."""
    found = [
        _number(database, query)
        for query in (
            "SELECT max(last) FROM batches",
            "SELECT max(first) FROM batches INDEXED BY batches_by_topic",
            "SELECT max(last) FROM quarantine",
            "SELECT max(last) FROM files",
            "SELECT max(first) FROM files INDEXED BY files_in_order WHERE replaced_ns IS NULL",
            "SELECT max(last) FROM fates INDEXED BY fates_by_last",
            "SELECT max(number) FROM fates",
            "SELECT max(seq) FROM sqlite_sequence",
            "SELECT max(number) FROM removals",
            "SELECT max(high) FROM cursors",
            "SELECT max(value) FROM meta WHERE key = 'last'",
        )
    ]
    return min(max(found) + BEYOND, 2**62)


def _unread(table: str, scan: Scan, covered: list[Span]) -> list[Finding]:
    """What a scan could not read: by the numbers of messages between those that are there."""
    where = f"{files.FILE}, {table}"
    if table not in ("batches", "quarantine"):
        return [Finding(where, f"some of it cannot be read: {scan.failed}")] if scan.failed else []
    there = sorted(covered)
    firsts = [first for first, _ in there]
    found = set()
    for low, high in scan.gaps:
        while low < high:
            at = bisect_right(firsts, low)
            first = there[at - 1][1] + 1 if at else 1
            low = there[at][0] if at < len(there) else scan.known + 1
            if first < low:
                found.add((first, low - 1))
            if at == len(there):
                break
    return [Finding(where, f"it cannot be read: {scan.failed}", *span) for span in sorted(found)]


def _misfit(table: str, values: tuple[Any, ...]) -> str | None:
    """What is wrong with the types of a row."""
    shape = _shapes()[table]
    for name, kind, required, value in zip(shape.names, shape.types, shape.required, values, strict=False):
        if value is None and not required:
            continue
        if not isinstance(value, kind):
            return f"its {name} is no {kind.__name__}"
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"its {name} is no text"
    return None


def _check_letter(row: dict[str, Any]) -> None:
    letter = decode_letter(row["letter"])
    if (letter.subscriber, letter.message.seq) != (row["subscriber"], row["seq"]):
        raise ValueError("it is filed under another name")


CONTENT: dict[str, Callable[[dict[str, Any]], object]] = {
    "cursors": lambda row: unpack(row["pending"]),
    "retries": lambda row: (decode_story(row["story"]), decode_message(row["message"])),
    "dead_letters": _check_letter,
    "orphans": lambda row: (Why(row["why"]), decode_message(row["message"])),
    "fates": lambda row: Fate(row["fate"]),
    "files": lambda row: LAKE.index(row["kind"]),
}
NAMES = {"cursors": "durable subscription", "retries": "retry", "dead_letters": "dead letter", "orphans": "orphan"}


def _fault(table: str, values: tuple[Any, ...]) -> str | None:
    """What is wrong with a row that is no batch, if anything is."""
    why = _misfit(table, values)
    if why is None and table in CONTENT:
        try:
            CONTENT[table](dict(zip(_shapes()[table].names, values, strict=True)))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            return f"it cannot be read: {error}"
    return why


def _faults(database: sqlite3.Connection, table: str) -> Iterator[tuple[tuple[Any, ...], Finding]]:
    """The rows of a table that are no good. Those without a row to them have an empty one."""
    scan = Scan(database, table, _end(database))
    for values in scan:
        if (why := _fault(table, values)) is not None:
            yield values, Finding(_named(table, values), why)
    for finding in _unread(table, scan, []):
        yield (), Finding(finding.where, finding.why)


def _named(table: str, values: tuple[Any, ...]) -> str:
    shape = _shapes()[table]
    key = " ".join(str(values[shape.names.index(name)]) for name in shape.key)
    return f"{files.FILE}, {NAMES.get(table, table)} {key}".encode(errors="backslashreplace").decode()


def _files(database: sqlite3.Connection) -> tuple[list[File], list[Finding]]:
    """The sealed files that count, as far as the journal still knows, by kind and in order."""
    scan = Scan(database, "files", 0)
    good, faulty = [], []
    for values in scan:
        if (why := _fault("files", values)) is not None:
            faulty.append(Finding(_named("files", values), why))
        elif values[-1] is None:
            good.append(File(*values[:-1]))
    good.sort(key=lambda file: (LAKE.index(file.kind), file.first))
    return good, faulty + _unread("files", scan, [])


def _shares(database: sqlite3.Connection) -> dict[str, int]:
    """How many messages the topics of each sealed file have, in all."""
    shares: dict[str, int] = {}
    with contextlib.suppress(sqlite3.Error, TypeError):
        for path, count in database.execute("SELECT path, sum(count) FROM file_topics GROUP BY path"):
            shares[path] = count
    return shares


# Repairing


def repair(directory: str | Path, world: World | None = None) -> Repaired:
    """Put aside what is damaged, and keep what can be read of it. Needs the journal for itself.

    Nothing is deleted: what was replaced is in the folder `damaged`, or in the table `quarantine`.
    """
    folder = Path(directory)
    if not (folder / files.FILE).exists() and not any(_lake(folder)):
        raise JournalUnusable(str(folder), "there is no journal here")
    if _is_newer(folder):
        files.open_for_reading(folder).close()
    lock = Lock(folder)
    lock.take()
    try:
        return _Repair(folder, (world or World()).time_ns()).run()
    finally:
        lock.release()


class _Repair:
    def __init__(self, folder: Path, now_ns: int) -> None:
        self._folder = folder
        self._now_ns = now_ns
        self._lost: list[Finding] = []
        self._aside: list[str] = []
        self._work = folder / ASIDE / f".{now_ns}"
        self._gone: list[Finding] = []
        """Files that are not where they should be. They may be found elsewhere."""
        self._unread: Scan | None = None
        """The scan of the batches, if it met something unreadable: named when it is known what there is."""

    def run(self) -> Repaired:
        try:
            if not self._is_sound():
                self._rebuild()
            self._mend()
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        return Repaired(tuple(self._lost), tuple(self._aside))

    def _mend(self) -> None:
        database = files.open_for_writing(self._folder, Sync.DISK)
        try:
            database.text_factory = _text
            database.execute("BEGIN IMMEDIATE")
            self._mend_batches(database)
            for table in _shapes():
                if table not in ("batches", "quarantine"):
                    self._mend_table(database, table)
            database.execute("COMMIT")
            self._mend_files(database)
            self._take_in_strangers(database)
            if self._unread is not None:
                self._fill_in(database, self._unread)
            self._keep_numbers(database)
        finally:
            database.close()

    def _is_sound(self) -> bool:
        try:
            with contextlib.closing(files.open_for_reading(self._folder)) as database:
                return not _complaints(database)
        except JournalUnusable:
            return False

    # The database

    def _rebuild(self) -> None:
        """A new database with every row that can be read of the old one, which is put aside as it was found."""
        store = self._folder / ASIDE
        store.mkdir(exist_ok=True)
        for suffix in ("", "-wal"):
            part = self._folder / f"{files.FILE}{suffix}"
            if part.exists():
                shutil.copyfile(part, store / f"{self._now_ns}-{part.name}")
        if (self._folder / files.FILE).exists():
            self._aside.append(f"{ASIDE}/{self._now_ns}-{files.FILE}")
        else:
            self._lost.append(Finding(files.FILE, "the file is gone, and what was not sealed with it"))
        self._work.mkdir()
        fresh = files.open_for_writing(self._work, Sync.DISK)
        try:
            if (self._folder / files.FILE).exists():
                with contextlib.closing(self._source(fresh)) as source:
                    for table in _shapes():
                        self._save(source, fresh, table)
        finally:
            fresh.close()
        # The old log first: it must never meet the new database.
        for suffix in ("-wal", "-shm"):
            (self._folder / f"{files.FILE}{suffix}").unlink(missing_ok=True)
        os.replace(self._work / files.FILE, self._folder / files.FILE)

    def _source(self, fresh: sqlite3.Connection) -> sqlite3.Connection:
        """A copy of the old database to read from, with its first page and its length put right if need be."""
        copy = self._work / COPY
        for suffix in ("", "-wal"):
            part = self._folder / f"{files.FILE}{suffix}"
            if part.exists():
                shutil.copyfile(part, f"{copy}{suffix}")
        if not _can_be_asked(copy):
            fresh.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            _put_right(copy, (self._work / files.FILE).read_bytes()[: files.PAGE_BYTES])
        source = sqlite3.connect(copy, isolation_level=None)
        source.text_factory = _text
        return source

    def _save(self, source: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> None:
        scan = Scan(source, table, _end(source))
        fresh.execute("BEGIN IMMEDIATE")
        for row in scan:
            if _misfit(table, row) is None:
                places = ", ".join("?" * len(row))
                fresh.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row)
            elif table == "batches":
                self._lost.append(_look_at(row) or Finding(_place(row), "it cannot be kept"))
            else:
                self._lost.append(Finding(_named(table, row), _misfit(table, row) or ""))
        fresh.execute("COMMIT")
        if scan.failed and table == "batches":
            self._unread = scan
        elif scan.failed:
            self._lost += [Finding(each.where, each.why) for each in _unread(table, scan, [])]

    def _fill_in(self, database: sqlite3.Connection, scan: Scan) -> None:
        """Batches that no table leads to any more, where some are missing; what is missing then is lost."""
        sealed = [(file.first, file.last) for file in _files(database)[0] if file.kind == "messages"]
        batches = "SELECT first, last FROM batches"
        missing = _unread("batches", scan, [*database.execute(batches), *sealed])
        removed = database.execute("SELECT topic, first, last FROM removals").fetchall()
        database.execute("BEGIN IMMEDIATE")
        for values in _batches_on_pages(self._work / COPY):
            first, last, topic = values[:3]
            if any(each.first <= first and last <= each.last for each in missing) and not any(
                topic == gone and low <= first and last <= high for gone, low, high in removed
            ):
                database.execute("INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        database.execute("COMMIT")
        self._lost += _unread("batches", scan, [*database.execute(batches), *sealed])

    def _mend_batches(self, database: sqlite3.Connection) -> None:
        broken: list[tuple[tuple[Any, ...], Finding]] = []
        for values in database.execute(f"SELECT {COLUMNS} FROM batches ORDER BY first"):
            if (finding := _look_at(values)) is not None:
                broken.append((values, finding))
        for values, finding in broken:
            self._lost.append(finding)
            # Put aside as it was found; only text that is none would not be read again.
            topic = str(values[2]).encode(errors="backslashreplace").decode()
            row = (*values[:2], topic, *values[3:], finding.why, self._now_ns)
            database.execute(f"INSERT OR IGNORE INTO quarantine VALUES ({', '.join('?' * len(row))})", row)
            database.execute("DELETE FROM batches WHERE first = ?", values[:1])

    def _mend_table(self, database: sqlite3.Connection, table: str) -> None:
        shape = _shapes()[table]
        for values, finding in list(_faults(database, table)):
            if table not in ("files", "file_topics"):
                # Those two can be made again from the files.
                self._lost.append(finding)
            key = [values[shape.names.index(name)] for name in shape.key]
            # Text that is none cannot be given as text.
            given = [value.encode(errors="surrogateescape") if isinstance(value, str) else value for value in key]
            casts = (f"CAST(? AS {'TEXT' if isinstance(value, str) else 'INTEGER'})" for value in key)
            where = " AND ".join(f"{name} = {cast}" for name, cast in zip(shape.key, casts, strict=True))
            if table == "cursors" and _misfit(table, values) is None:
                # Only what it had pending is not known any more; where it stands is.
                database.execute(f"UPDATE cursors SET pending = ? WHERE {where}", (pack([]), *given))
            else:
                database.execute(f"DELETE FROM {table} WHERE {where}", given)

    def _keep_numbers(self, database: sqlite3.Connection) -> None:
        """What was lost keeps its numbers: none is given twice."""
        last = max([database.execute(LAST).fetchone()[0] or 0, *(finding.last for finding in self._lost)])
        if self._unread is not None and any(high > self._unread.known for _, high in self._unread.gaps):
            # Of a batch that came last, perhaps only the beginning is known.
            last += MAX_ROW_MESSAGES
        fate = database.execute(
            "SELECT max(coalesce((SELECT max(number) FROM fates), 0),"
            " coalesce((SELECT max(last) FROM files WHERE kind = 'fates'), 0))"
        ).fetchone()[0]
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT OR REPLACE INTO meta VALUES ('last', ?)", (last,))
        if not database.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'fates'", (fate,)).rowcount:
            database.execute("INSERT INTO sqlite_sequence VALUES ('fates', ?)", (fate,))
        database.execute("COMMIT")

    # The lake

    def _mend_files(self, database: sqlite3.Connection) -> None:
        shares = _shares(database)
        for file in _files(database)[0]:
            if (finding := _look_into(self._folder, file, shares)) is not None:
                path = self._folder / file.path
                if path.exists():
                    self._take_in(database, path, file.kind, finding)
                else:
                    self._swap(database, file.path, None)
                    self._gone.append(finding)

    def _take_in_strangers(self, database: sqlite3.Connection) -> None:
        """Files that lie in the lake, and that the journal has forgotten. The next start would remove them.

        The newest first: what it was made of, and stands beside it, is not wanted again.
        """
        known = {path for (path,) in database.execute("SELECT path FROM files")}
        strangers = [path for path in _lake(self._folder) if self._name(path) not in known]
        for path in sorted(strangers, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            kind = path.relative_to(self._folder).parts[0]
            if self._is_wanted(database, path, kind):
                self._take_in(database, path, kind, None)
            else:
                self._put_aside(path)
                path.unlink()
        there = {(file.first, file.last) for file in _files(database)[0]}
        self._lost += [finding for finding in self._gone if (finding.first, finding.last) not in there]

    def _is_wanted(self, database: sqlite3.Connection, path: Path, kind: str) -> bool:
        try:
            _, first, last = _written_down(path, kind)
        except Exception:
            # Whatever pyarrow makes of a damaged file. What can be read of it is found out later.
            return True
        overlaps = "SELECT count(*) FROM files WHERE kind = ? AND replaced_ns IS NULL AND first <= ? AND last >= ?"
        if database.execute(overlaps, (kind, last, first)).fetchone()[0]:
            return False
        # A file that was about to be sealed when the process died: the journal has all of it still.
        table, key, end = ("batches", "first", "last") if kind == "messages" else ("fates", "number", "number")
        beside = f"SELECT count(*) FROM {table} WHERE {key} <= ? AND {end} >= ?"
        return not database.execute(beside, (last, first)).fetchone()[0]

    def _take_in(self, database: sqlite3.Connection, path: Path, kind: str, finding: Finding | None) -> None:
        """Have the journal know a file again: as it is if it is whole, otherwise what can be read of it."""
        import pyarrow as pa

        from trunkline.journal import lake

        saved: list[Span] = []
        day = path.parent.name.removeprefix("date=")
        whole = lake._Tally(kind)
        expected = _rows_of(path)
        for batch in _readable(path, kind, saved):
            whole.add(pa.Table.from_batches([batch]))
        name = self._name(path)
        if whole.rows and whole.rows == expected and (finding is None or finding.why == MISRECORDED):
            file = whole.file(name, day, path.stat().st_size, lake.checksum_of(path))
            self._swap(database, name, lake.Sealed(file, whole.topics))
            return
        mended = lake.write(self._folder, kind, day, _readable(path, kind, []))
        self._name_lost(path, kind, finding, saved, whole.rows, expected)
        self._put_aside(path)
        self._swap(database, name, mended)
        path.unlink()

    def _name_lost(
        self, path: Path, kind: str, finding: Finding | None, saved: list[Span], rows: int, expected: int | None
    ) -> None:
        if rows == expected:
            # The damage was somewhere between its rows.
            return
        of = "its" if expected is None else f"{expected:,}"
        why = f"{finding.why if finding else 'it is damaged'}; {rows:,} of {of} rows saved"
        name = self._name(path)
        if kind != "messages":
            self._lost.append(Finding(name, why))
            return
        # The name has the numbers, and no damage to the file reaches it.
        first, last = (int(number) for number in path.stem.split("-")[:2])
        for begin, end in [*saved, (last + 1, last)]:
            if first < begin:
                self._lost.append(Finding(name, why, first, begin - 1))
            first = end + 1

    def _swap(self, database: sqlite3.Connection, old: str, new: Sealed | None) -> None:
        """At no moment does a file that is wanted count for nobody: the next start would remove it."""
        from trunkline.journal import lake

        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM files WHERE path = ?", (old,))
        database.execute("DELETE FROM file_topics WHERE path = ?", (old,))
        if new is not None:
            lake.record(database, new)
        database.execute("COMMIT")

    def _put_aside(self, path: Path) -> None:
        """Under a second name, for now: the first goes when nobody counts on it any more."""
        store = self._folder / ASIDE
        store.mkdir(exist_ok=True)
        target = store / f"{self._now_ns}-{path.name}"
        os.link(path, target)
        self._aside.append(self._name(target))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()


def _can_be_asked(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path)) as database:
        try:
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
            database.execute("SELECT count(*) FROM meta")
        except sqlite3.Error:
            return False
    return names >= _shapes().keys()


def _put_right(path: Path, first_page: bytes) -> None:
    """Give a database the first page that every journal has, and the length it ought to have.

    The tables are made in one go when a journal begins, so that they begin at the same pages in all of them.
    """
    pages = max(1, -(-path.stat().st_size // files.PAGE_BYTES))
    with path.open("r+b") as file:
        # How many pages there are is not worth knowing from a page that cannot be trusted.
        file.write(first_page[:28] + pages.to_bytes(4, "big") + bytes(8) + first_page[40:])
        file.truncate(pages * files.PAGE_BYTES)


def _batches_on_pages(path: Path) -> Iterator[tuple[Any, ...]]:
    """The batches that lie on any page of a database, by their own account. A checksum vouches for each."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        pages = Pages(data)
        for number in range(2, len(data) // files.PAGE_BYTES + 1):
            for values in pages.rows(number):
                if len(values) == len(_shapes()["batches"].names) and _look_at(values) is None:
                    yield values


class Pages:
    """The pages of a database, without what leads to them: https://sqlite.org/fileformat.html describes them."""

    LEAF = 0x0D

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data

    def rows(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The rows on a page, if it is one with rows of a table. The first column is the key."""
        page = self._page(number)
        if page[0] != self.LEAF:
            return
        for at in range(int.from_bytes(page[3:5], "big")):
            with contextlib.suppress(IndexError, ValueError):
                yield self._row(page, int.from_bytes(page[8 + 2 * at : 10 + 2 * at], "big"))

    def _page(self, number: int) -> bytes:
        if number < 1:
            raise ValueError("there is no such page")
        return self._data[(number - 1) * files.PAGE_BYTES : number * files.PAGE_BYTES]

    def _row(self, page: bytes, at: int) -> tuple[Any, ...]:
        size, at = _varint(page, at)
        key, at = _varint(page, at)
        if size > len(self._data):
            raise ValueError("no row is as long as that")
        here = size
        most = files.PAGE_BYTES - 35
        if size > most:
            least = (files.PAGE_BYTES - 12) * 32 // 255 - 23
            here = least + (size - least) % (files.PAGE_BYTES - 4)
            here = here if here <= most else least
        parts = [page[at : at + here]]
        following = int.from_bytes(page[at + here : at + here + 4], "big")
        while (size := size - len(parts[-1])) > 0:
            page = self._page(following)
            following = int.from_bytes(page[:4], "big")
            parts.append(page[4 : 4 + size])
            if not parts[-1]:
                raise ValueError("it ends too early")
        return self._columns(b"".join(parts), key)

    def _columns(self, record: bytes, key: int) -> tuple[Any, ...]:
        end, at = _varint(record, 0)
        kinds = []
        while at < end:
            kind, at = _varint(record, at)
            kinds.append(kind)
        values: list[Any] = []
        for kind in kinds:
            size = (kind - 12) // 2 if kind >= 12 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)[kind]
            data = record[at : at + size]
            at += size
            if kind >= 12:
                values.append(bytes(data) if kind % 2 == 0 else _text(data))
            else:
                values.append(kind - 8 if kind >= 8 else int.from_bytes(data, "big", signed=True) if kind else key)
        return tuple(values)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for count in range(9):
        byte = data[at + count]
        if count == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + count + 1
    raise AssertionError


def _rows_of(path: Path) -> int | None:
    """How many rows a file says it has."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            return int(parquet.metadata.num_rows)
    except Exception:
        # Whatever pyarrow makes of a damaged file.
        return None


def _readable(path: Path, kind: str, saved: list[Span]) -> Iterator[Any]:
    """The batches of a damaged file that are what was written, as far as can be told, and their numbers."""
    import pyarrow.compute as pc

    from trunkline.journal import lake

    key = "seq" if kind == "messages" else "number"
    needed = ("seq", "id", "topic", "timestamp_ns", "payload") if kind == "messages" else lake.SCHEMAS[kind].names
    last = 0
    for batch in _salvaged(lake.salvage(path)):
        if not batch.num_rows or set(batch.schema.names) != set(lake.SCHEMAS[kind].names):
            continue
        if any(batch.column(name).null_count for name in needed):
            continue
        numbers = batch.column(key)
        rising = pc.all(pc.greater(numbers[1:], numbers[:-1])).as_py()
        if rising is False or numbers[0].as_py() <= last:
            continue
        last = numbers[-1].as_py()
        saved.append((numbers[0].as_py(), last))
        yield batch


def _salvaged(batches: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except Exception:
        # Whatever pyarrow makes of a damaged file: what came before it is good.
        return
