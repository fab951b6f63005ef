"""Ranges of fates are never inverted, and contain all their messages, in any order of taking."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import trunkline as tl
from tests.journal.journals import Clock
from trunkline.delivery.books import Books
from trunkline.delivery.options import Delivery
from trunkline.journal import Journal, Reader
from trunkline.journal.cursor import Cursor
from trunkline.journal.ledger import Entries, JournalLedger
from trunkline.journal.settings import JournalSettings

numbers = st.integers(1, 40)
taken = st.lists(st.lists(numbers, min_size=1, max_size=6, unique=True), max_size=12)
"""Stretches as a stream takes them: the numbers of each need not rise."""


@settings(max_examples=200, deadline=None)
@given(stretches=taken, one_by_one=st.booleans())
def test_rows_of_the_journal(stretches: list[list[int]], one_by_one: bool) -> None:
    async def told() -> list[tuple[int, int, int]]:
        clock = Clock()
        ledger = JournalLedger(JournalSettings(), clock.world, lambda: None)
        async with tl.MemoryBroker().subscribe("a", Delivery(name="x")) as stream:
            for stretch in stretches:
                if one_by_one:
                    for seq in stretch:
                        ledger.delivered_one(stream.inbox, tl.Message(topic="a", seq=seq), clock.now_ns)
                else:
                    ledger.delivered(stream.inbox, stretch[0], stretch[-1], len(stretch), clock.now_ns)
        return [row[3:6] for job in ledger.jobs() if isinstance(job, Entries) for row in job.fates]

    rows = asyncio.run(told())
    assert all(1 <= first <= last for first, last, _ in rows)
    for stretch in stretches:
        for seq in stretch if one_by_one else (stretch[0], stretch[-1]):
            assert any(first <= seq <= last for first, last, _ in rows)
    assert sum(count for _, _, count in rows) == sum(map(len, stretches))


@settings(max_examples=200, deadline=None)
@given(stretches=taken, pauses=st.lists(st.integers(0, 2), max_size=12))
def test_books_of_a_subscriber(stretches: list[list[int]], pauses: list[int]) -> None:
    books = Books()
    now_ns = 0
    for at, stretch in enumerate(stretches):
        now_ns += pauses[at] * 1_000_000_000 if at < len(pauses) else 0
        books.deliver(stretch[0], stretch[-1], len(stretch), now_ns)
    assert all(span.first <= span.last for span in books.spans)
    for stretch in stretches:
        for seq in (stretch[0], stretch[-1]):
            assert any(span.first <= seq <= span.last for span in books.spans)


@settings(max_examples=200, deadline=None)
@given(offered=st.lists(numbers, unique=True).map(sorted), data=st.data())
def test_ranges_of_a_cursor(offered: list[int], data: st.DataObject) -> None:
    cursor = Cursor("x", "a", 0)
    for seq in offered:
        cursor.offer(seq)
    settled = data.draw(st.permutations(offered))
    upto = data.draw(st.integers(0, len(settled)))
    for seq in settled[:upto]:
        cursor.settle(seq)
    found = cursor.ranges(settled[:upto])
    assert all(first <= last and 1 <= count <= last - first + 1 for first, last, count in found)
    held = [seq for seq in offered for first, last, _ in found if first <= seq <= last]
    assert sorted(held) == sorted(settled[:upto])


async def test_what_comes_back_out_of_order_has_its_fate(tmp_path: Path) -> None:
    """A message that waited for room has a lower number than messages that overtook it: both are explained."""
    with Journal(tmp_path, threaded=False) as journal:
        async with tl.connect("memory:", journal=journal) as bus:
            ids = []
            async with bus.subscribe("a", name="x") as stream:
                for priority in (50, 90, 10, 50):
                    ids.append(await bus.publish("a", b"", priority=priority))
                for _ in ids:
                    assert await stream.recv() is not None
            for message_id in ids:
                assert [each.fate for each in (await bus.explain(message_id)).outcomes] == [tl.Fate.DELIVERED]
    with Reader(tmp_path) as reader:
        assert all(first <= last for first, last in reader.query("SELECT first, last FROM fates"))
