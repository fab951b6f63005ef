"""The identity of a journal: a UUID that is created with the journal and stored in its database.

Message numbers are valid in one journal only. Code that stores a position in a journal stores the identity with it, and
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
    """The identity.

    None if it is missing or damaged: the next process that opens the journal for writing creates one.
    """
    if not database.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'identity'").fetchone()[0]:
        return None
    row = database.execute("SELECT CAST(uuid AS BLOB) FROM identity").fetchone()
    if row is None:
        return None
    if not UUID.fullmatch(row[0]):
        log.error("the identity of a journal is damaged; the next writer creates a new one: %r", row[0])
        return None
    return bytes(row[0]).decode()


def check(directory: Path, expected: str | None, found: str | None) -> None:
    """Raise WrongJournal if a position belongs to another journal. A position without an identity fits any."""
    if expected is not None and expected != found:
        raise WrongJournal(str(directory), expected, found)
