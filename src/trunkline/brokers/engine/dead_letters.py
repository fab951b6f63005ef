"""Dead letters that an engine keeps: with what is needed to give them back to the one subscriber that failed.

What died at a member of a group or a durable subscription goes back through the engine, to whoever of them is there.
What died at a plain subscription goes back into its inbox in this process.
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
from trunkline.delivery.dead_letters import Cause, Choice, DeadLetter
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


class EngineDeadLetters(Ledger):
    """One for a broker. It is the ledger of plain subscriptions, and of the dead letters here."""

    hears_of_deliveries = False

    def __init__(self, adapter: EngineAdapter, served: Subscribers, feeds: Mapping[str, InboxFeed]) -> None:
        self._adapter = adapter
        self._served = served
        self._feeds = feeds
        self._elsewhere: set[str] = set()
        """Subscribers in other processes, to whom the engine gives letters back."""
        served.dead_letters.ledger = self
        adapter.keep_letter = self.keep

    @property
    def _keeps(self) -> bool:
        return Feature.STORED in self._adapter.driver.features

    async def keep(self, letter: DeadLetter) -> None:
        """Return when the engine has the letter of a group or a durable subscription."""
        await self._adapter.driver.keep(TABLE, _key(letter), RETURNS + letter.to_bytes())

    async def recall(self, after: str) -> tuple[list[DeadLetter], str]:
        """A page of those that can be replayed from here, and where the next one begins; "" after the last."""
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

    # For tools, which have no subscribers of their own

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
                # The engine gives them in no order.
                return sorted(found, key=lambda kept: (kept.letter.at_ns, kept.letter.message.seq))[:limit]

    async def replay(self, letters: Iterable[DeadLetter]) -> list[LetterFailure]:
        """Redeliver those of groups and durable subscriptions. Says which stay, and why."""
        kept = {each.letter.key: each for each in await self.find()}
        failures: list[LetterFailure] = []
        for letter in letters:
            now = kept.get(letter.key)
            if now is not None and now.returns:
                await self._give_back(letter, letter.message.replace(attempts=0))
                continue
            why = "it is not a dead letter any more"
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
            # Its subscriber was in a process that is gone, or another one: nobody here can take it.
            return None
        return letter

    def returns(self, role: str) -> None:
        """The engine gives letters back to this one, a subscriber here."""
        self._served.receivers[role] = _leave_to_the_engine
        self._elsewhere.discard(role)

    def left(self, feed: InboxFeed) -> None:
        if isinstance(feed, MemberFeed) and not feed.durable:
            self._served.receivers.pop(feed.inbox.role, None)

    # The ledger

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        """At a plain subscription."""
        if self._keeps:
            keep = self._adapter.driver.keep
            work = self._adapter.insist(lambda: keep(TABLE, _key(letter), STAYS + letter.to_bytes()))
            self._adapter.start(work, f"the dead letter {letter.message.id} is in this process alone")

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
        await self._adapter.driver.discard(TABLE, _key(letter))

    def removed(self, letter: DeadLetter) -> None:
        if self._keeps:
            discard = self._adapter.driver.discard
            work = self._adapter.insist(lambda: discard(TABLE, _key(letter)))
            self._adapter.start(work, f"the dead letter {letter.message.id} is still at {self._adapter.url}")

    def handled(self, inbox: Inbox, seq: int) -> None:
        return

    async def aclose(self) -> None:
        await self._adapter.settled()


def _key(letter: DeadLetter) -> str:
    return f"{sha256(letter.subscriber.encode()).hexdigest()[:16]}-{letter.message.id}"


def _leave_to_the_engine(message: Message) -> None:
    """It brings the message back: `revived` asks it to."""
