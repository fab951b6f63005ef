"""The quarantine: a damaged batch is moved there, reported once, and not read again."""

from __future__ import annotations

from trunkline.errors import JournalDamaged
from trunkline.journal.writer import Database


def put_aside(database: Database, damage: JournalDamaged, now_ns: int) -> None:
    """Move a damaged batch to the quarantine, unchanged."""
    database.execute(
        "INSERT OR IGNORE INTO quarantine SELECT *, ?, ? FROM batches WHERE first = ? AND last = ?",
        (damage.why, now_ns, damage.first, damage.last),
    )
    database.execute("DELETE FROM batches WHERE first = ? AND last = ?", (damage.first, damage.last))
