"""The contract of brokers on a slow disk: the seed decides when commits and reads finish."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.journal.journals import SlowJournal
from trunkline.journal import JournalBroker, JournalSettings, Sync
from trunkline.testing import CONTRACT, Promise, Simulation, simulate

SEEDS = range(2)
KEPT = {
    "durable": JournalSettings(sync=Sync.SYSTEM),
    "recorded": JournalSettings(sync=Sync.SYSTEM, durable=(), recorded=(">",)),
    "mixed": JournalSettings(sync=Sync.SYSTEM, durable=("t", "a.>"), recorded=(">",)),
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_is_kept(promise: Promise, kept: str, tmp_path: Path) -> None:
    places = itertools.count()

    def make(simulation: Simulation) -> JournalBroker:
        journal = SlowJournal(tmp_path / str(next(places)), KEPT[kept], simulation)
        return JournalBroker(journal, owns_journal=True)

    for seed in SEEDS:
        simulate(lambda simulation: promise(lambda: make(simulation)), seed=seed)
