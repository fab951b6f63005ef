"""Whether a run has anything to do: compares a journal with a warehouse. Imports neither Spark nor Arrow."""

from __future__ import annotations

from pathlib import Path

from trunkline.journal import records
from trunkline.journal.reader import Reader
from trunkline.spark.pipeline import manifest as manifests
from trunkline.spark.pipeline.journals import find


class Ends:
    """The end of a journal: the numbers of the last message and the last fate, and the number of orphans.

    Everything up to these numbers can be read, or was removed. Claiming an orphan changes only the number of orphans.
    """

    def __init__(self, directory: str | Path) -> None:
        with Reader(directory) as reader:
            # Orphans are counted first: an orphan that is added after this is noticed by the next run.
            self.orphans = records.orphan_count(reader)
            self.seq = reader.highest("messages")
            self.fate = reader.highest("fates")

    def are_ahead_of(self, state: manifests.JournalState) -> bool:
        return state.seq < self.seq or state.fate < self.fate or state.orphans != self.orphans


def last_run(journals: list[Path], warehouse: Path) -> int | None:
    """The number of the last run if the warehouse is up to date; None if a run may have something to do."""
    manifest = manifests.load(warehouse)
    if not manifest.run or not manifest.journals:
        return None
    for journal in journals:
        state = manifest.state(find(manifest, warehouse, journal).name)
        if Ends(journal).are_ahead_of(state):
            return None
    return manifest.run
