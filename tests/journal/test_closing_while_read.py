"""A journal that is closed while its event loop goes on asking: the query is refused, and never runs on a connection
that another thread closes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trunkline.journal import Journal
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.reader import Reader


def count(reader: Reader) -> int:
    ((number,),) = reader.query(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) SELECT count(*) FROM n"
    )
    return int(number)


def test_queries_during_a_close_are_answered_or_refused(tmp_path: Path) -> None:
    async def ask(journal: Journal) -> None:
        while True:
            assert await journal.in_thread(count) == 2000

    async def main() -> None:
        for number in range(20):
            journal = Journal(tmp_path / str(number)).open()
            asking = [asyncio.create_task(ask(journal)) for _ in range(3)]
            assert await journal.in_thread(count) == 2000
            await journal.aclose()
            for each in asking:
                with pytest.raises(JournalUnusable, match="it is not open"):
                    await asyncio.wait_for(each, 60)

    asyncio.run(main())
