"""The store of a broker on an engine: the messages that the engine stores, and the fates that its processes keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline import columns
from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.batches import LOCAL, decode, entry_of, number_of
from trunkline.brokers.engine.driver import Standing
from trunkline.brokers.engine.notes import is_settled, may_be_undelivered
from trunkline.brokers.remote.store import RemoteStore
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate, Outcome
from trunkline.errors import InvalidPayload, JournalDamaged, TopicNotStored
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.brokers.engine.broker import EngineBroker


FATES = {
    Standing.ACKNOWLEDGED: Fate.DELIVERED,
    Standing.WAITING: Fate.IN_FLIGHT,
    Standing.REMOVED: Fate.DROPPED,
    Standing.REMOVED_HELD: Fate.DROPPED,
    Standing.FORGOTTEN: Fate.UNKNOWN,
    Standing.HANDED_OUT: Fate.UNKNOWN,
}


HELD = (Standing.WAITING, Standing.HANDED_OUT)
OR_EXPIRED = "acknowledged at the engine, which does not record whether it was delivered or had expired"
OR_FILTERED = "acknowledged at the engine, which does not record whether it was delivered, filtered or dropped"


class EngineStore(RemoteStore):
    def __init__(self, broker: EngineBroker) -> None:
        super().__init__(broker)
        self._broker = broker
        self._adapter = broker.adapter

    async def _last(self, topic: str, before: int | None) -> Message | None:
        """Raises TopicNotStored if the engine does not store the topic."""
        driver = self._adapter.driver
        if not self._adapter.is_durable(topic) or self._adapter.is_open(topic):
            raise TopicNotStored(topic, driver.durable)
        entry_number, index = (None, 0) if before is None else entry_of(before)
        # The entry that contains `before` may also contain earlier messages.
        found = await driver.last(topic, None if entry_number is None else entry_number + 1)
        if found is not None and found.number == entry_number and index == 0:
            found = await driver.last(topic, entry_number)
        if found is None:
            return None
        try:
            head, body = decode(found.data)
            first = number_of(found.number)
            messages = columns.read(topic, body, range(first, first + head.count))
        except InvalidPayload as error:
            where = f"entry {found.number} on {topic} at {driver.url}"
            raise JournalDamaged(number_of(found.number), number_of(found.number), where, str(error)) from error
        return messages[index - 1 if found.number == entry_number else -1]

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        """See `Store.explain`.

        Asks every process on the engine, and the engine for subscriptions that no process serves.
        """
        self._broker.check_open()
        await self._adapter.ready()
        message, outcomes = await self._broker.peers.explain(message_id, known)
        if message is not None and Feature.STORED in self._adapter.driver.features:
            outcomes += await self._absent(message, {outcome.subscriber for outcome in outcomes})
        return message, outcomes

    async def _absent(self, message: Message, answered: set[str]) -> list[Outcome]:
        """The outcomes at durable subscriptions that no process serves at the moment, as known to the engine."""
        numbers = self._adapter.known.numbers(message.seq)
        stored = next((number for number in numbers if 0 < number < LOCAL), 0)
        if not stored:
            return []
        found: list[Outcome] = []
        for role, standing in (await self._adapter.driver.standings(message.topic, stored, answered)).items():
            if standing in HELD and await is_settled(self._adapter.driver, role, stored):
                # Other messages of its entry are not.
                standing = Standing.ACKNOWLEDGED
            # A message that became a dead letter is acknowledged, too.
            letter = None if standing in HELD else await self._broker.dead_letters.of(role, message)
            if letter is not None:
                found.append(Outcome(role, Fate.DEAD, f"{letter.cause}: {letter.reason}", letter.at_ns))
            elif standing is Standing.ACKNOWLEDGED and message.ttl_s is not None:
                found.append(Outcome(role, Fate.UNKNOWN, OR_EXPIRED))
            elif standing is Standing.ACKNOWLEDGED and await may_be_undelivered(self._adapter.driver, role, stored):
                found.append(Outcome(role, Fate.UNKNOWN, OR_FILTERED))
            else:
                found.append(Outcome(role, FATES[standing], standing.value))
        return found

    async def recall_dead_letters(self, after: str = "") -> tuple[list[DeadLetter], str]:
        return await self._broker.dead_letters.recall(after)

    async def _forget(self, name: str) -> bool:
        return await self._adapter.driver.forget(name)
