"""The journals of a warehouse. Each has a name in the tables and is recognised by its identity."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trunkline.journal.reader import Reader
from trunkline.spark.errors import UnknownJournal
from trunkline.spark.pipeline.manifest import JournalState, Manifest


class JournalSource(NamedTuple):
    """A journal, and its name in the tables."""

    name: str
    directory: Path


def journal_name(directory: str | Path) -> str:
    """The default name of a journal in the tables: its directory name, made valid as the name of a partition."""
    return re.sub(r"[^\w.-]", "_", Path(directory).resolve().name, flags=re.ASCII).lstrip("._") or "journal"


def identity_of(directory: str | Path) -> str | None:
    with Reader(directory) as reader:
        return reader.identity


def find(manifest: Manifest, warehouse: Path, directory: str | Path) -> JournalSource:
    """The journal in this directory. Raises UnknownJournal if it is not in the warehouse, or was reset."""
    identity = identity_of(directory)
    for name, state in manifest.journals.items():
        if identity is not None and state.identity == identity:
            return JournalSource(name, Path(directory))
    same_name = manifest.journals.get(journal_name(directory))
    if same_name is not None and same_name.identity is None:
        # It was ingested before journals had identities.
        return JournalSource(journal_name(directory), Path(directory))
    known = {name: state.identity for name, state in manifest.journals.items()}
    raise UnknownJournal(str(warehouse), known, str(directory), identity)


def admit(manifest: Manifest, warehouse: Path, directories: Iterable[Path], *, add: bool) -> list[JournalSource]:
    """The journals of a run.

    An empty warehouse accepts any journals. Later runs accept new journals only with `add`, else raise UnknownJournal.
    """
    may_add = add or not any(state.seq or state.fate for state in manifest.journals.values())
    found = []
    for directory in directories:
        try:
            source = find(manifest, warehouse, directory)
        except UnknownJournal:
            if not may_add:
                raise
            source = JournalSource(_free_name(manifest, journal_name(directory)), directory)
            manifest.journals[source.name] = JournalState()
        manifest.journals[source.name].identity = identity_of(directory)
        found.append(source)
    return found


def _free_name(manifest: Manifest, wanted: str) -> str:
    """The wanted name, with a number appended if another journal has it."""
    names = (wanted, *(f"{wanted}-{number}" for number in range(2, len(manifest.journals) + 3)))
    return next(name for name in names if name not in manifest.journals)
