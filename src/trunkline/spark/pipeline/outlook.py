"""What a run would find: how far a journal is, and how far a warehouse is in it. Imports neither Spark nor Arrow."""

from __future__ import annotations

from pathlib import Path

from trunkline.journal import records
from trunkline.journal.reader import Reader
from trunkline.spark.pipeline import manifest as manifests
from trunkline.spark.pipeline.journals import find


class Ends:
    """How far a journal is: the last message and the last fate. Everything up to there can be read, or was removed.

    Also how many orphans it keeps: they become fewer when somebody claims one, which leaves no other trace.
    """

    def __init__(self, directory: str | Path) -> None:
        with Reader(directory) as reader:
            # First: one that comes after this makes a difference the next time.
            self.orphans = records.orphan_count(reader)
            self.seq = reader.highest("messages")
            self.fate = reader.highest("fates")

    def are_ahead_of(self, state: manifests.JournalState) -> bool:
        return state.seq < self.seq or state.fate < self.fate or state.orphans != self.orphans


def last_run(journals: list[Path], warehouse: Path) -> int | None:
    """The number of the last run if that has taken in all there is; None if there may be something to do."""
    manifest = manifests.load(warehouse)
    if not manifest.run or not manifest.journals:
        return None
    for journal in journals:
        state = manifest.state(find(manifest, warehouse, journal).name)
        if Ends(journal).are_ahead_of(state):
            return None
    return manifest.run
