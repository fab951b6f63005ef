"""The store of a broker with a journal: what is on disk, together with what its subscribers still hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trunkline.brokers.store import StoreSummary
from trunkline.delivery.dead_letters import Choice, DeadLetter
from trunkline.delivery.fates import Outcome
from trunkline.delivery.requests import Why
from trunkline.errors import TopicNotStored
from trunkline.journal.dead_letters import JournalDeadLetters
from trunkline.journal.ledger import decode_message, readable
from trunkline.journal.settings import Retention, TopicStorage
from trunkline.journal.unread import UnreadCounts
from trunkline.message import Message
from trunkline.topic import validate_topic

if TYPE_CHECKING:
    from trunkline.journal.broker import JournalBroker

SEARCHED = 1_000_000
"""In a journal of more messages an id is only looked for near the time it names: the event loop waits meanwhile."""
RECALLED = 1000
RECALLED_BYTES = 16 * 1024 * 1024


class JournalStore:
    def __init__(self, broker: JournalBroker) -> None:
        self._broker = broker
        self._journal = broker.journal
        self.folder = broker.journal.directory
        self.durable = broker.journal.settings.durable
        self.dead_letters = JournalDeadLetters(broker.journal, broker.served, broker.subscribe)
        self._unread = UnreadCounts(broker.journal)

    @property
    def local(self) -> JournalStore:
        return self

    @property
    def _everywhere(self) -> bool:
        # Ids name their time, unless a clock was set back or somebody made them by hand.
        return self._journal.intake.committed <= SEARCHED

    def find(self, message_id: str) -> Message | None:
        return self._journal.reader.find(message_id, everywhere=self._everywhere)

    async def look_for(self, message_id: str) -> Message | None:
        """As `find`, without keeping the event loop waiting."""
        everywhere = self._everywhere
        return await self._journal.in_thread(lambda reader: reader.find(message_id, everywhere=everywhere))

    async def last(self, topic: str, before: int | None = None) -> Message | None:
        settings = self._journal.settings
        kept = settings.keeps(validate_topic(topic))
        self._broker.check_open()
        if kept is TopicStorage.NOT:
            raise TopicNotStored(topic, (*settings.durable, *settings.recorded))
        if kept is TopicStorage.RECORDED:
            # Its publishers did not wait until it was written.
            await self._journal.flush()
        return await self._journal.in_thread(lambda reader: reader.last_of(topic, before))

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        message = known or self._broker.recent(message_id) or await self.look_for(message_id)
        if message is None:
            return None, []
        await self._journal.flush()
        written = await self._journal.in_thread(lambda reader: reader.outcomes(message))
        # Afterwards: what happened meanwhile is newer than what was written.
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

    def durable_names(self) -> list[str]:
        return [name for (name,) in self._journal.reader.query("SELECT name FROM cursors")]

    async def summary(self) -> StoreSummary:
        places = await self._unread.places()
        numbers = "SELECT (SELECT count(*) FROM dead_letters), (SELECT count(*) FROM orphans)"
        ((letters, orphans),) = await self._journal.in_thread(lambda reader: reader.query(numbers))
        return StoreSummary(letters, orphans, places)

    def retain(self, rules: tuple[Retention, ...]) -> None:
        self._journal.channel_rules = rules
