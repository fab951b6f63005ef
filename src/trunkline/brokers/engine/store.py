"""The store of a broker on an engine: what the engine has stored, and what processes on it remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline import columns
from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.batches import TRIMMED, decode, entry_of, number_of
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate, Outcome
from trunkline.delivery.requests import Why
from trunkline.errors import InvalidPayload, JournalDamaged, TopicNotStored
from trunkline.message import Message
from trunkline.topic import matches, validate_topic

if TYPE_CHECKING:
    from trunkline.brokers.engine.broker import EngineBroker


class EngineStore:
    local = None

    def __init__(self, broker: EngineBroker) -> None:
        self._broker = broker
        self._adapter = broker.adapter

    async def last(self, topic: str, before: int | None = None) -> Message | None:
        """As everywhere. Raises TopicNotStored if the engine does not store the topic."""
        validate_topic(topic)
        self._broker.check_open()
        await self._adapter.ready()
        self._broker.require(Feature.STORED)
        driver = self._adapter.driver
        if not self._adapter.is_durable(topic) or self._adapter.is_open(topic):
            raise TopicNotStored(topic, driver.durable)
        entry_number, index = (None, 0) if before is None else entry_of(before)
        # The entry of `before` itself may have messages before it.
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
        """As everywhere: every process on the engine is asked, and the engine for subscriptions without one."""
        self._broker.check_open()
        await self._adapter.ready()
        message, outcomes = await self._broker.peers.explain(message_id, known)
        if message is not None and Feature.STORED in self._adapter.driver.features:
            outcomes += await self._absent(message, {outcome.subscriber for outcome in outcomes})
        return message, outcomes

    async def _absent(self, message: Message, answered: set[str]) -> list[Outcome]:
        """What the engine knows of durable subscriptions that no process serves at the moment."""
        numbers = self._adapter.known.numbers(message.seq)
        stored = next((entry_of(number)[0] for number in numbers if 0 < number < 1 << 62), 0)
        if not stored:
            return []
        found: list[Outcome] = []
        for state in await self._adapter.driver.states():
            if state.role in answered or not matches(state.pattern, message.topic) or stored <= state.since:
                continue
            if stored <= state.done:
                found.append(Outcome(state.role, Fate.DELIVERED, "acknowledged at the engine"))
            elif not await self._is_stored(message.topic, stored):
                found.append(Outcome(state.role, Fate.DROPPED, TRIMMED))
            else:
                found.append(Outcome(state.role, Fate.IN_FLIGHT, "waits at the engine for its subscriber"))
        return found

    async def _is_stored(self, topic: str, entry: int) -> bool:
        last = await self._adapter.driver.last(topic, entry + 1)
        return last is not None and last.number == entry

    async def recall_dead_letters(self, after: str = "") -> tuple[list[DeadLetter], str]:
        return await self._broker.dead_letters.recall(after)

    def recall_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        """None: those of this process are in memory."""
        return []

    def pause(self) -> None:
        return

    async def forget(self, name: str) -> bool:
        """As everywhere."""
        self._broker.check_open()
        await self._adapter.ready()
        self._broker.require(Feature.DURABLE)
        return await self._adapter.driver.forget(name)
