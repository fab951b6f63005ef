"""How commands come to a journal: is one there, may it be written to, and what of it is damaged."""

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
            f"{FILE} is gone, but not its lake: `trunkline journal verify --repair {directory}` makes a new one of it",
        )
    what = "is no directory" if not directory.is_dir() else f"holds no {FILE}"
    raise UsageError(
        f"there is no journal in {directory}, which {what}: "
        "give the directory that a program names in connect(..., journal=DIRECTORY)"
    )


def there_or_lost(directory: Path) -> Path:
    """For what can make a journal of its lake."""
    try:
        return there(directory)
    except JournalUnusable:
        return directory


@contextmanager
def reading(directory: Path) -> Iterator[Reader]:
    """A reader. What is damaged is left out, named, and makes the command end with 1."""
    known: set[str] = set()

    def name(damage: JournalDamaged) -> None:
        if str(damage) not in known:
            known.add(str(damage))
            show.notice(f"left out: {damage}")

    with Reader(directory, on_damage=name) as reader:
        yield reader
    if known:
        show.notice(f"next step: trunkline journal verify {directory}")
        raise typer.Exit(1)


@contextmanager
def owning(instead: str) -> Iterator[None]:
    """For what needs the journal for itself; `instead` is what to do while a program has it."""
    try:
        yield
    except JournalLocked as error:
        error.add_note(f"next step: {instead}")
        raise
