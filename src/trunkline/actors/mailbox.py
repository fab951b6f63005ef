"""A mailbox: the inbox of an actor. A message that gets no room in time becomes a dead letter, and is logged as an
error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from trunkline.delivery.fates import Fate, Outcome
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.parking import Parked, Waiting
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import Congested, InboxFull
from trunkline.message import Message, Priority
from trunkline.message_log import about
from trunkline.plural import counted

log = logging.getLogger("trunkline.actors")

LOG_EVERY_S: Final = 1.0
"""The minimum interval between two log records of a mailbox that loses messages. Each lost message is a dead letter."""


TERMINATED: Final = "trunkline.Terminated"
"""The schema of notices that an actor has ended. They are accepted even if the mailbox is full."""


class MailboxOwner(Protocol):
    @property
    def current(self) -> Message | None: ...

    stashed: list[Message] | None

    def lost(self, message: Message, why: str) -> None:
        """Called when there was no room for the message. Its fate is already recorded."""


class ParkedAtMailbox(Parked):
    __slots__ = ()

    inbox: Mailbox

    def give_up(self, why: str) -> None:
        if not self.entered.done():
            self.inbox.unpark(self, why, Fate.DEAD)
            self.inbox.bury(self.message, why)


class Mailbox(Inbox):
    __slots__ = ("_logged_at", "_lost", "by_priority", "owner")

    parking = ParkedAtMailbox

    def belong_to(self, owner: MailboxOwner, *, by_priority: bool) -> None:
        """Must be called before the mailbox is used. A constructor that passes on all arguments would be slower."""
        self.owner = owner
        self.by_priority = by_priority
        """Whether the priority of a message determines what happens to it when there is no room: see `Keep`."""
        self._lost = 0
        self._logged_at: float | None = None
        self.told = True

    def _overflow(self, policy: Overflow, message: Message) -> Waiting | None:
        if message.schema == TERMINATED:
            # The watcher of an actor must be able to rely on this notice.
            self._put(message)
            return None
        if self.by_priority:
            if message.priority >= Priority.HIGH:
                policy = Overflow.BLOCK
            else:
                policy = Overflow.REJECT if message.priority >= Priority.NORMAL else Overflow.DROP_NEWEST
        return super()._overflow(policy, message)

    def _wait_for_room(self, message: Message) -> Parked:
        if (waiting := len(self.parked)) >= self.max_parked:
            self._drop(message, f"congested: {waiting} publishes already wait for room")
            raise Congested(self.name, waiting)
        return super()._wait_for_room(message)

    def _evict(self, message: Message, why: str) -> None:
        self._unmark(message)
        self._drop(message, why)

    def _drop(self, message: Message, why: str) -> None:
        self.settle(message, Fate.DEAD, why)
        self.bury(message, why)

    def _refuse(self, message: Message, why: str) -> None:
        self._drop(message, why)
        raise InboxFull(self.name, self.capacity)

    def _begin_to_lose(self, policy: Overflow) -> None:
        # `bury` logs it, as an error.
        return

    def bury(self, message: Message, why: str) -> None:
        """Make a lost message a dead letter. Its fate is already recorded."""
        self._lost += 1
        now = asyncio.get_running_loop().time()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.error(
                "the mailbox of %s has lost %s, the last one is %s: %s",
                self.name,
                counted(self._lost, "message"),
                message.id,
                why,
                extra=about(message),
            )
            self._lost = 0
        self.owner.lost(message, why)

    def outcome_of(self, message: Message) -> Outcome | None:
        current = self.owner.current
        if current is not None and current.seq == message.seq:
            return Outcome(self.role, Fate.IN_FLIGHT, "is being handled")
        if any(stashed.seq == message.seq for stashed in self.owner.stashed or ()):
            return Outcome(self.role, Fate.IN_FLIGHT, "was put aside by the actor")
        return super().outcome_of(message)
