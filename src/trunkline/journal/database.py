"""The SQLite file of a journal: its tables, and how it is opened for writing and for reading."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

from trunkline.clock import World
from trunkline.journal import attendance, identity, records
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.settings import Sync

FILE = "journal.db"
REPAIRED = "journal.db.repaired"
"""A repaired database that is about to replace the old one and its log."""
VERSION = 1
REPAIR = "`trunkline journal verify --repair` saves what can be read"
WAL_PAGES = 4000
PATIENCE_S = 10
"""How long a statement waits for another process."""
PAGE_BYTES = 4096
LENGTHEN_BYTES = 64 * 1024

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

-- Messages that are not sealed yet: a row per batch, numbers without a gap, one topic.
CREATE TABLE batches (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, topic TEXT NOT NULL, at_ns INTEGER NOT NULL,
    since_ns INTEGER NOT NULL, until_ns INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX batches_by_topic ON batches (topic, first);

-- A batch that is not what was written, put aside as it was found.
CREATE TABLE quarantine (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, topic TEXT NOT NULL, at_ns INTEGER NOT NULL,
    since_ns INTEGER NOT NULL, until_ns INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    why TEXT NOT NULL, found_ns INTEGER NOT NULL
);

-- What became of messages: a range that was delivered, or one message that was not.
CREATE TABLE fates (
    number INTEGER PRIMARY KEY AUTOINCREMENT, subscriber TEXT NOT NULL, pattern TEXT NOT NULL, fate TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL, reason TEXT NOT NULL, at_ns INTEGER NOT NULL
);
CREATE INDEX fates_by_last ON fates (last);

-- Durable subscriptions: up to `high` everything that matches has its fate, except what is `pending`.
CREATE TABLE cursors (
    name TEXT PRIMARY KEY, pattern TEXT NOT NULL, high INTEGER NOT NULL, pending BLOB NOT NULL,
    created_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL
) WITHOUT ROWID;

-- Failed messages that wait for their next attempt, with what went wrong so far.
CREATE TABLE retries (
    subscriber TEXT NOT NULL, seq INTEGER NOT NULL, due_ns INTEGER NOT NULL, story BLOB NOT NULL, message BLOB NOT NULL,
    PRIMARY KEY (subscriber, seq)
) WITHOUT ROWID;

CREATE TABLE dead_letters (
    subscriber TEXT NOT NULL, seq INTEGER NOT NULL, at_ns INTEGER NOT NULL, topic TEXT NOT NULL, id TEXT NOT NULL,
    cause TEXT NOT NULL, reason TEXT NOT NULL, letter BLOB NOT NULL, PRIMARY KEY (subscriber, seq)
) WITHOUT ROWID;

CREATE TABLE orphans (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, request_id TEXT, topic TEXT NOT NULL, why TEXT NOT NULL,
    at_ns INTEGER NOT NULL, message BLOB NOT NULL
);

-- The lake: files that count. `replaced_ns` is when a file was replaced; it is kept a while for its readers.
CREATE TABLE files (
    path TEXT PRIMARY KEY, kind TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL, layout INTEGER NOT NULL, day TEXT NOT NULL, at_ns INTEGER NOT NULL,
    until_at_ns INTEGER NOT NULL, since_ns INTEGER NOT NULL, until_ns INTEGER NOT NULL, checksum INTEGER NOT NULL,
    replaced_ns INTEGER
) WITHOUT ROWID;
CREATE INDEX files_in_order ON files (kind, first) WHERE replaced_ns IS NULL;
CREATE TABLE file_topics (
    path TEXT NOT NULL, topic TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL,
    bytes INTEGER NOT NULL, until_at_ns INTEGER NOT NULL, PRIMARY KEY (path, topic)
) WITHOUT ROWID;

-- What retention took away.
CREATE TABLE removals (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    count INTEGER NOT NULL, why TEXT NOT NULL, at_ns INTEGER NOT NULL
);
"""

ADDITIONS = (
    # The last message of a topic is found by this index.
    "CREATE INDEX IF NOT EXISTS file_topics_by_topic ON file_topics (topic, first)",
    # Older versions stored the state of actors with a durable subscription. It is no longer read, and would block
    # retention.
    "DELETE FROM cursors WHERE substr(pattern, 1, 7) = '_state.' AND name = 'state of ' || substr(pattern, 8)",
    attendance.TABLE,
    records.TABLE,
    records.INDEX,
    identity.TABLE,
)
"""Applied whenever a journal is opened for writing.

Versions of Trunkline without them can still use the journal, so they need no new VERSION.
"""


def open_for_writing(directory: Path, sync: Sync, world: World) -> sqlite3.Connection:
    """The only connection that writes. Creates the tables in a new file, unless a lake exists beside it."""
    path = directory / FILE
    finish_repair(directory)
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=PATIENCE_S)
        try:
            # Pages are overwritten when they are reused: erasing them first would double the work.
            database.execute("PRAGMA secure_delete = OFF")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {'FULL' if sync is Sync.DISK else 'NORMAL'}")
            set_patience(database, patient=True)
            database.execute("PRAGMA cache_size = -16384")
            _prepare(database, directory)
            identity.ensure(database, world)
        except BaseException:
            database.close()
            raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise JournalUnusable(str(directory), why(error, directory)) from error
    return database


def set_patience(database: sqlite3.Connection, *, patient: bool) -> None:
    """Set whether a commit may take long, to wait for another process and to move a full log into the database."""
    database.execute(f"PRAGMA busy_timeout = {PATIENCE_S * 1000 if patient else 0}")
    database.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES if patient else 0}")


def finish_repair(directory: Path) -> None:
    """Put a repaired database in place of the old one, also after a crash in between.

    The old log must be removed before the new database is in place. Without its log, the old database would lack
    messages.
    """
    repaired = directory / REPAIRED
    if not repaired.exists():
        return
    for suffix in ("-wal", "-shm"):
        (directory / f"{FILE}{suffix}").unlink(missing_ok=True)
    sync_path(directory)
    os.replace(repaired, directory / FILE)
    sync_path(directory)


def open_for_reading(directory: Path) -> sqlite3.Connection:
    path = directory / FILE
    if not path.exists():
        raise JournalUnusable(str(directory), "there is no journal here")
    try:
        return _connect_to_read(directory, "mode=ro")
    except UnicodeDecodeError as error:
        raise JournalUnusable(str(directory), why(error, directory)) from error
    except sqlite3.Error as error:
        if os.access(directory, os.W_OK) and not _is_read_only(error):
            raise JournalUnusable(str(directory), why(error, directory)) from error
    try:
        log = directory / f"{FILE}-wal"
        if not log.exists() or not log.stat().st_size:
            # The directory is read-only and has no log, so the file is complete.
            return _connect_to_read(directory, "mode=ro&immutable=1")
        return _connect_to_copy(directory)
    except (sqlite3.Error, OSError) as error:
        reason = why(error, directory) if isinstance(error, sqlite3.Error) else str(error)
        raise JournalUnusable(str(directory), reason) from error


def _is_read_only(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))


def _connect_to_read(directory: Path, how: str) -> sqlite3.Connection:
    uri = f"{(directory / FILE).resolve().as_uri()}?{how}"
    database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10)
    try:
        _check_version(database, directory)
    except BaseException:
        database.close()
        raise
    return database


def _connect_to_copy(directory: Path) -> sqlite3.Connection:
    """Open a copy. SQLite cannot read a log in a read-only directory, because it must create a file beside it."""
    with tempfile.TemporaryDirectory(prefix="trunkline-") as copy:
        for name in (FILE, f"{FILE}-wal"):
            shutil.copyfile(directory / name, Path(copy) / name)
        database = _connect_to_read(Path(copy), "mode=rw")
        # Merge the log into the file, load the file into memory, and delete the copy.
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        database.backup(memory)
        database.close()
    return memory


def _prepare(database: sqlite3.Connection, directory: Path) -> None:
    if database.execute("PRAGMA user_version").fetchone()[0] == 0:
        if next(directory.glob("messages/date=*/*.parquet"), None) is not None:
            # A new one would number from 1 again, and treat the files as leftovers of a crash.
            raise JournalUnusable(str(directory), f"{FILE} is missing, but sealed files exist: {REPAIR}")
        database.execute("BEGIN IMMEDIATE")
        for statement in TABLES.split(";\n"):
            if statement.strip():
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("COMMIT")
        sync_path(directory)
    _check_version(database, directory)
    for statement in ADDITIONS:
        database.execute(statement)


def lengthen_log(database: sqlite3.Connection, directory: Path) -> None:
    """Extend the log to its full length: a small commit into allocated blocks takes a third less time.

    SQLite ignores data beyond its last frame, and overwrites it. This is not done if the disk is nearly full.
    """
    database.execute("INSERT OR REPLACE INTO meta VALUES ('opened', 1)")
    length = WAL_PAGES * (PAGE_BYTES + 24)
    space = os.statvfs(directory)
    with (directory / f"{FILE}-wal").open("r+b") as log:
        missing = length - log.seek(0, os.SEEK_END)
        if missing > 0 and space.f_bavail * space.f_frsize > 8 * length:
            # In small parts: after one large block is freed, the C library keeps all blocks up to that size.
            piece = bytes(LENGTHEN_BYTES)
            for done in range(0, missing, LENGTHEN_BYTES):
                log.write(piece[: missing - done])
            log.flush()
            os.fsync(log.fileno())


def _check_version(database: sqlite3.Connection, directory: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise JournalUnusable(
            str(directory), f"it has version {version}, this Trunkline supports up to {VERSION}: upgrade Trunkline"
        )
    if version == 0:
        raise JournalUnusable(str(directory), "it is empty: nothing was written to it yet")


def sync_path(path: Path) -> None:
    """Sync a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why(error: Exception, directory: Path) -> str:
    """The meaning of an error of SQLite, and the next step."""
    match getattr(error, "sqlite_errorname", ""):
        case "SQLITE_FULL":
            return "the disk is full: free some space"
        case "SQLITE_READONLY" | "SQLITE_CANTOPEN" | "SQLITE_READONLY_DIRECTORY" | "SQLITE_PERM":
            return f"no permission to write in {directory}"
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB" | "SQLITE_CORRUPT_INDEX":
            return f"{FILE} is damaged ({error}): {REPAIR}"
        case "SQLITE_ERROR" if "malformed" in str(error):
            return f"{FILE} is damaged ({error}): {REPAIR}"
        case "" if isinstance(error, UnicodeDecodeError):
            return f"{FILE} is damaged ({error}): {REPAIR}"
        case name if name.startswith("SQLITE_IOERR"):
            return f"the disk failed ({error}, {name})"
        case _:
            return str(error)
