"""Opening a journal for a command: check that it exists and is not locked, and report damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from trunkline.cli import show
from trunkline.errors import JournalDamaged, UsageError
from trunkline.journal.database import FILE
from trunkline.journal.errors import JournalLocked, JournalUnusable
from trunkline.journal.reader import Reader


def there(directory: Path) -> Path:
    if (directory / FILE).exists():
        return directory
    if any(directory.glob("messages/date=*/*.parquet")):
        raise JournalUnusable(
            str(directory),
            f"{FILE} is missing, but its lake exists: `trunkline journal verify --repair {directory}` rebuilds it",
        )
    what = "is not a directory" if not directory.is_dir() else f"has no {FILE}"
    raise UsageError(
        f"there is no journal in {directory}, which {what}: "
        "pass the directory that the program passes to connect(..., journal=DIRECTORY)"
    )


def there_or_lost(directory: Path) -> Path:
    """As `there`, but accepts an unusable journal, for commands that can rebuild it from its lake."""
    try:
        return there(directory)
    except JournalUnusable:
        return directory


@contextmanager
def reading(directory: Path) -> Iterator[Reader]:
    """Open a reader. Damaged parts are skipped and reported; the command then exits with 1."""
    known: set[str] = set()

    def name(damage: JournalDamaged) -> None:
        if str(damage) not in known:
            known.add(str(damage))
            show.notice(f"skipped: {damage}")

    with Reader(directory, on_damage=name) as reader:
        yield reader
    if known:
        show.notice(f"next step: trunkline journal verify {directory}")
        raise typer.Exit(1)


@contextmanager
def owning(instead: str) -> Iterator[None]:
    """Add a next step to JournalLocked: `instead` says what to do while another process has the lock."""
    try:
        yield
    except JournalLocked as error:
        error.add_note(f"next step: {instead}")
        raise
