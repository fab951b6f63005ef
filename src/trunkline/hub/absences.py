"""Absences: messages that were published while a plain subscriber was disconnected count as dropped.

Their numbers are looked up when the subscriber reconnects: plain topics among the recent batches, stored topics in the
journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.delivery.books import AWAY
from trunkline.delivery.fates import Fate
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.ranges import Ranges
from trunkline.errors import NotStored

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub

SOME_TOPICS: Final = 256
"""Other work is done after this many topics."""
STEP: Final = 100_000
"""The number of messages that are looked up at once."""
LONGEST: Final = 1_000_000
"""Of a longer absence, only the last messages are looked up."""


class Absence(NamedTuple):
    after: int
    """The subscriber was offered all messages up to this number."""
    upto: int
    """The last message before it reconnected."""


class Absences:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._last: tuple[Absence, asyncio.Task[list[dict[str, Ranges]]]] | None = None
        """The last lookup. The subscriptions of one client share it."""

    async def record(self, outlet: Outlet, absence: Absence) -> None:
        """Count what the subscriber missed, in its books and in the journal."""
        if self._last is None or self._last[0] != absence:
            self._last = absence, asyncio.ensure_future(self._look_up(absence))
        shared = self._last
        plain, *stored = await asyncio.shield(shared[1])
        if self._last is shared:
            self._last = None
        missed = await self._missed(outlet, plain)
        self._count(outlet, missed)
        total, first, last = 0, 0, 0
        for found in stored:
            missed = await self._missed(outlet, found)
            self._count(outlet, missed)
            for begin, end in missed:
                total, first, last = total + end - begin + 1, first or begin, end
        if total and outlet.ledger is not None:
            outlet.ledger.fate(
                outlet.name, outlet.pattern, Fate.DROPPED, first, last, total, AWAY, self._hub.world.time_ns()
            )

    def _count(self, outlet: Outlet, missed: Ranges) -> None:
        if not outlet.closed:
            outlet.books.miss(missed.total)
        self._hub.counts["dropped"] += missed.total

    async def _look_up(self, absence: Absence) -> list[dict[str, Ranges]]:
        """The numbers by topic: first those that are not stored, then the others, in order."""
        hub = self._hub
        found = [hub.recent.numbers_by_topic(absence.after + 1, absence.upto)]
        if hub.store is not None:
            # Then everything up to `upto` has been stored and routed.
            with suppress(NotStored):
                await hub.broker.flush()
            for first, last in _steps(absence):
                found.append(await hub.store.numbers_by_topic(first, last))
        return found

    async def _missed(self, outlet: Outlet, found: dict[str, Ranges]) -> Ranges:
        """The numbers that the subscriber was to get. Some may have been routed after it had reconnected."""
        leads = self._hub.broker.tree.leads
        numbers: list[tuple[int, int]] = []
        for count, (topic, ranges) in enumerate(found.items()):
            if leads(topic, outlet.pattern):
                numbers += ranges
            if not count % SOME_TOPICS:
                await asyncio.sleep(0)
        missed = Ranges()
        for first, last in sorted(numbers):
            missed.add(first, last)
        return outlet.books.without_fate(missed)


def _steps(absence: Absence) -> Iterator[tuple[int, int]]:
    first = max(absence.after, absence.upto - LONGEST) + 1
    while first <= absence.upto:
        yield first, min(first + STEP - 1, absence.upto)
        first += STEP
