"""The store of a broker with a journal: data on disk, combined with the state of its subscribers."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from trunkline.brokers.store import StoreSummary
from trunkline.delivery.dead_letters import Choice, DeadLetter
from trunkline.delivery.fates import Outcome
from trunkline.delivery.ranges import Ranges
from trunkline.delivery.requests import Why
from trunkline.errors import NotStored, TopicNotStored
from trunkline.journal import lookup
from trunkline.journal.dead_letters import JournalDeadLetters
from trunkline.journal.ledger import decode_message, readable
from trunkline.journal.number_reserve import NumberReserve
from trunkline.journal.settings import Retention, TopicStorage
from trunkline.journal.unread import UnreadCounts
from trunkline.message import Message
from trunkline.topic import validate_topic

if TYPE_CHECKING:
    from trunkline.journal.broker import JournalBroker

SEARCHED = 1_000_000
"""In a larger journal an id is searched only near the time in it, because the event loop waits."""
MAX_LOOKED_UP = 100_000
RECALLED = 1000
RECALLED_BYTES = 16 * 1024 * 1024


class JournalStore:
    def __init__(self, broker: JournalBroker, attended: set[tuple[str, str]]) -> None:
        self.attended = attended
        self._broker = broker
        self._journal = broker.journal
        self.folder = broker.journal.directory
        self.durable = broker.journal.settings.durable
        self.dead_letters = JournalDeadLetters(broker.journal, broker.served, broker.subscribe)
        self._unread = UnreadCounts(broker.journal)
        self.numbers = NumberReserve(broker.journal)

    @property
    def local(self) -> JournalStore:
        return self

    @property
    def _everywhere(self) -> bool:
        # Ids contain their time, unless a clock was set back or they were made by hand.
        return self._journal.intake.committed <= SEARCHED

    def find(self, message_id: str) -> Message | None:
        return self._journal.reader.find(message_id, everywhere=self._everywhere)

    async def look_for(self, message_id: str) -> Message | None:
        """As `find`, without blocking the event loop."""
        everywhere = self._everywhere
        return await self._journal.in_thread(lambda reader: reader.find(message_id, everywhere=everywhere))

    async def last(self, topic: str, before: int | None = None) -> Message | None:
        settings = self._journal.settings
        kept = settings.keeps(validate_topic(topic))
        self._broker.check_open()
        if kept is TopicStorage.NOT:
            raise TopicNotStored(topic, (*settings.durable, *settings.recorded))
        if kept is TopicStorage.RECORDED:
            # Its publishers did not wait for the disk.
            await self._journal.flush()
        return await self._journal.in_thread(lambda reader: reader.last_of(topic, before))

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        message = known or self._broker.recent(message_id) or await self.look_for(message_id)
        if message is None:
            return None, []
        # If the disk is full, the last fates are still known here in memory.
        with contextlib.suppress(NotStored):
            await self._journal.flush()
        written = await self._journal.in_thread(lambda reader: reader.outcomes(message))
        # Read last: the state in memory is newer than that on disk.
        outcomes = self._broker.served.outcomes(message)
        here = {outcome.subscriber for outcome in outcomes}
        return message, outcomes + [outcome for outcome in written if outcome.subscriber not in here]

    async def recall_dead_letters(self, after: str = "") -> tuple[list[DeadLetter], str]:
        found, more = await self.dead_letters.page(Choice(), RECALLED, RECALLED_BYTES, after, lambda _: True)
        return [letter for letter, _ in found], more

    def recall_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        now_ns = self._broker.world.time_ns()
        since_ns = 0 if math.isinf(max_age_s) else now_ns - int(max_age_s * 1e9)
        found = self._journal.reader.query(
            "SELECT message, why, at_ns FROM orphans WHERE at_ns >= ? ORDER BY seq", (since_ns,)
        )
        recalled = []
        for data, why, at_ns in found:
            message = readable(decode_message, data, "an orphan")
            if message is not None and message.seq not in self._journal.ledger.claimed_lately:
                recalled.append((message, Why(why), (now_ns - at_ns) / 1e9))
        return recalled

    async def forget(self, name: str) -> bool:
        await self._broker.end_feeder(name)
        return await self._journal.forget(name)

    def pause(self) -> None:
        self._broker.pause()

    async def numbers_by_topic(self, first: int, last: int) -> dict[str, Ranges]:
        first = max(first, last - MAX_LOOKED_UP + 1)
        return await self._journal.in_thread(lambda reader: lookup.numbers(reader, first, last))

    def durable_names(self) -> list[str]:
        return [name for (name,) in self._journal.reader.query("SELECT name FROM cursors")]

    async def summary(self) -> StoreSummary:
        places = await self._unread.places()
        numbers = "SELECT (SELECT count(*) FROM dead_letters), (SELECT count(*) FROM orphans)"
        ((letters, orphans),) = await self._journal.in_thread(lambda reader: reader.query(numbers))
        return StoreSummary(letters, orphans, places)

    def retain(self, rules: tuple[Retention, ...]) -> None:
        self._journal.channel_rules = rules
