"""The identity of a journal: a UUID, made with the journal and kept in its database.

Numbers mean something in one journal only. Whoever keeps a place in a journal keeps its identity beside the number, and
refuses a journal with another one. A copy of a directory has the identity of the original.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from pathlib import Path
from typing import Final

from trunkline.clock import World
from trunkline.journal.errors import WrongJournal

log = logging.getLogger("trunkline.journal")

UUID: Final = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

TABLE: Final = "CREATE TABLE IF NOT EXISTS identity (uuid TEXT PRIMARY KEY) WITHOUT ROWID"


def ensure(database: sqlite3.Connection, world: World) -> None:
    """Give the journal an identity, unless it has one."""
    if read(database) is None:
        database.execute("BEGIN IMMEDIATE")
        replace(database, world.uuid7())
        database.execute("COMMIT")


def replace(database: sqlite3.Connection, identity: str) -> None:
    database.execute("DELETE FROM identity")
    database.execute("INSERT INTO identity VALUES (?)", (identity,))


def read(database: sqlite3.Connection) -> str | None:
    """None if it has none, or a damaged one: the next who opens the journal for writing makes one."""
    if not database.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'identity'").fetchone()[0]:
        return None
    row = database.execute("SELECT CAST(uuid AS BLOB) FROM identity").fetchone()
    if row is None:
        return None
    if not UUID.fullmatch(row[0]):
        log.error("the identity of a journal is damaged, the next writer makes a new one: %r", row[0])
        return None
    return bytes(row[0]).decode()


def check(directory: Path, expected: str | None, found: str | None) -> None:
    """Raise WrongJournal if a place belongs to another journal. One that was kept without an identity fits any."""
    if expected is not None and expected != found:
        raise WrongJournal(str(directory), expected, found)
