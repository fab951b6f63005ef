"""Dead letters that an engine keeps, with the data to redeliver them to the subscriber that failed.

A dead letter of a group or of a durable subscription is redelivered by the engine, to any of its subscribers that is
connected. A dead letter of a plain subscription goes back into the inbox of the subscription in this process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.batches import BatchHead, encode_part
from trunkline.brokers.remote.feed import InboxFeed
from trunkline.brokers.remote.member import MemberFeed
from trunkline.brokers.store import KeptDeadLetter
from trunkline.delivery.dead_letters import UNREADABLE, Cause, Choice, DeadLetter
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.subscribers import Subscribers
from trunkline.errors import InvalidPayload
from trunkline.message import Message
from trunkline.topic import EVERYTHING
from trunkline.wire.control import LetterFailure

if TYPE_CHECKING:
    from trunkline.brokers.engine.adapter import EngineAdapter

log = logging.getLogger("trunkline.connection")

TABLE = "dead"
RETURNS = b"\x01"
STAYS = b"\x00"
MAX_UNREADABLE = 1000
"""How many letters of a subscriber are kept for data that is not a message: other programs can store any amount."""
TRIM_EVERY = 100
"""After this many such letters, a process removes the oldest ones beyond MAX_UNREADABLE."""


class EngineDeadLetters(Ledger):
    """One per broker. It is the ledger of plain subscriptions, and of the dead letters in this process."""

    hears_of_deliveries = False
    keeps_unreadable = True

    def __init__(self, adapter: EngineAdapter, served: Subscribers, feeds: Mapping[str, InboxFeed]) -> None:
        self._adapter = adapter
        self._served = served
        self._feeds = feeds
        self._elsewhere: set[str] = set()
        """Subscribers in other processes, to which the engine redelivers dead letters."""
        self._unreadable = 0
        """How many letters this process has kept for data that is not a message."""
        served.dead_letters.ledger = self
        adapter.keep_letter = self.keep

    @property
    def _keeps(self) -> bool:
        return Feature.STORED in self._adapter.driver.features

    async def keep(self, letter: DeadLetter) -> None:
        """Return when the engine has stored the dead letter of a group or of a durable subscription."""
        await self._adapter.driver.keep(TABLE, _key(letter), RETURNS + letter.to_bytes())
        if _is_unreadable(letter):
            self._unreadable += 1
            if self._unreadable % TRIM_EVERY == 0:
                await self._trim_unreadable(letter.subscriber)

    async def _trim_unreadable(self, subscriber: str) -> None:
        kept = await self.find(subscriber=subscriber, cause=Cause.INVALID_PAYLOAD)
        letters = [each.letter for each in kept if _is_unreadable(each.letter)]
        for letter in letters[:-MAX_UNREADABLE]:
            await self._discard(letter)

    async def of(self, role: str, message: Message) -> DeadLetter | None:
        """The dead letter of a message at a group or a durable subscription, if the engine has one."""
        name = sha256(role.encode()).hexdigest()[:16]
        value = await self._adapter.driver.kept(TABLE, f"{name}-{message.id}")
        return None if value is None else self._decode(value)

    async def recall(self, after: str) -> tuple[list[DeadLetter], str]:
        """A page of the dead letters that can be replayed here, and the start of the next page; "" after the last."""
        await self._adapter.ready()
        if not self._keeps:
            return [], ""
        await self._adapter.settled()
        if not after:
            for name in self._elsewhere:
                self._served.receivers.pop(name, None)
            self._elsewhere.clear()
        page, more = await self._adapter.driver.page(TABLE, after)
        return [letter for _, value in page if (letter := self._read(value)) is not None], more

    # For tools, which have no subscribers

    async def keeps(self) -> bool:
        await self._adapter.ready()
        return self._keeps

    async def find(
        self,
        *,
        subscriber: str | None = None,
        topic: str = EVERYTHING,
        cause: Cause | None = None,
        message_id: str | None = None,
        limit: int | None = None,
        brief: bool = False,
    ) -> list[KeptDeadLetter]:
        """Dead letters of all processes, oldest first. Raises EngineUnavailable."""
        if not await self.keeps():
            return []
        choice = Choice(subscriber=subscriber, topic=topic, cause=cause, message_id=message_id)
        found: list[KeptDeadLetter] = []
        after = ""
        while True:
            page, after = await self._adapter.driver.page(TABLE, after)
            for _, value in page:
                letter = self._decode(value)
                if letter is not None and choice.holds(letter):
                    found.append(KeptDeadLetter(letter, True, value[:1] == RETURNS))
            if not after:
                # The engine returns them in no particular order.
                return sorted(found, key=lambda kept: (kept.letter.at_ns, kept.letter.message.seq))[:limit]

    async def replay(self, letters: Iterable[DeadLetter]) -> list[LetterFailure]:
        """Redeliver dead letters of groups and durable subscriptions.

        Returns those that were not redelivered, with the reason.
        """
        kept = {each.letter.key: each for each in await self.find()}
        failures: list[LetterFailure] = []
        for letter in letters:
            now = kept.get(letter.key)
            if now is not None and now.returns:
                await self._give_back(letter, letter.message.replace(attempts=0))
                continue
            why = "it is no longer a dead letter"
            if now is not None:
                why = f"{letter.subscriber} is not durable: call bus.replay_dead() in its own process"
            failures.append(
                LetterFailure(subscriber=letter.subscriber, seq=letter.message.seq, code="not_replayed", text=why)
            )
        return failures

    def _decode(self, value: bytes) -> DeadLetter | None:
        try:
            return DeadLetter.from_bytes(value[1:])
        except InvalidPayload as error:
            log.error("a dead letter at %s cannot be read and is skipped: %s", self._adapter.url, error)
            return None

    def _read(self, value: bytes) -> DeadLetter | None:
        letter = self._decode(value)
        if letter is None:
            return None
        name = letter.subscriber
        if value[:1] == RETURNS:
            if name not in self._served.receivers:
                self._served.receivers[name] = _leave_to_the_engine
                self._elsewhere.add(name)
        elif name not in self._feeds:
            # The subscriber is or was in another process, so the letter cannot be replayed here.
            return None
        return letter

    def returns(self, role: str) -> None:
        """Note that the engine redelivers the dead letters of this subscriber, which is in this process."""
        self._served.receivers[role] = _leave_to_the_engine
        self._elsewhere.discard(role)

    def left(self, feed: InboxFeed) -> None:
        if isinstance(feed, MemberFeed) and not feed.durable:
            self._served.receivers.pop(feed.inbox.role, None)

    # The ledger

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        """Called when a message has become a dead letter at a plain subscription."""
        if self._keeps:
            keep = self._adapter.driver.keep
            work = self._adapter.insist(lambda: keep(TABLE, _key(letter), STAYS + letter.to_bytes()))
            self._adapter.start(work, f"the dead letter {letter.message.id} is kept only in this process")

    def revived(self, letter: DeadLetter, message: Message) -> None:
        if letter.subscriber in self._served.receivers:
            work = self._give_back(letter, message)
            self._adapter.start(work, f"the dead letter {letter.message.id} of {letter.subscriber} was not replayed")
        else:
            self.removed(letter)

    async def _give_back(self, letter: DeadLetter, message: Message) -> None:
        message = replace(message, seq=letter.message.seq)
        head = BatchHead(0, 0, 0, 1, message.priority)
        await self._adapter.ready()
        await self._adapter.driver.give_back(letter.subscriber, message.topic, encode_part(head, [message]))
        await self._discard(letter)

    async def _discard(self, letter: DeadLetter) -> None:
        await self._adapter.driver.discard(TABLE, _key(letter))

    def removed(self, letter: DeadLetter) -> None:
        if self._keeps:
            work = self._adapter.insist(lambda: self._discard(letter))
            self._adapter.start(work, f"the dead letter {letter.message.id} was not removed from {self._adapter.url}")

    def handled(self, inbox: Inbox, seq: int) -> None:
        return

    async def aclose(self) -> None:
        await self._adapter.settled()


def _is_unreadable(letter: DeadLetter) -> bool:
    return letter.message.id == f"{UNREADABLE}{letter.message.seq}"


def _key(letter: DeadLetter) -> str:
    return f"{sha256(letter.subscriber.encode()).hexdigest()[:16]}-{letter.message.id}"


def _leave_to_the_engine(message: Message) -> None:
    """Does nothing: `revived` makes the engine redeliver the message."""
