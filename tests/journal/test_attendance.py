"""Attendance: what a killed hub had not delivered is found wherever messages and fates are stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.journal.journals import fill, journal_in
from trunkline.delivery.fates import Fate
from trunkline.journal import Journal
from trunkline.journal.attendance import Loss, losses


def attend(journal: Journal, subscriber: str, pattern: str, since: int, handled: list[int]) -> None:
    journal.ledger.attends(subscriber, pattern, since)
    for seq in handled:
        journal.ledger.fate(subscriber, pattern, Fate.DELIVERED, seq, seq, 1, "", journal.world.time_ns())
    asyncio.run(journal.flush())


@pytest.mark.parametrize("seal_rows", [1000, 8, 3], ids=["unsealed", "fates sealed", "all sealed"])
def test_messages_without_a_fate_are_lost_and_no_others(tmp_path: Path, seal_rows: int) -> None:
    with journal_in(tmp_path, seal_rows=seal_rows) as journal:
        fill(journal, 6, 1, "a.x", "b")
        attend(journal, "all", ">", 0, [1, 2, 3, 4, 6])
        attend(journal, "some", "a.*", 1, [3])
        attend(journal, "others", "b", 0, [2, 4, 6])
        attend(journal, "late", ">", 6, [])
        journal.tender.seal()
        (unsealed,) = journal.reader.query("SELECT (SELECT count(*) FROM batches), (SELECT count(*) FROM fates)")
        assert unsealed == {1000: (6, 9), 8: (6, 1), 3: (0, 0)}[seal_rows]
        assert losses(journal.reader) == [Loss("all", ">", 5, 5), Loss("some", "a.*", 5, 5)]
