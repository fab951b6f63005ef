"""The ledger: receives the fates of messages, to keep them outside this process's memory. The journal has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from trunkline.delivery.dead_letters import Attempt, DeadLetter
    from trunkline.delivery.fates import Fate
    from trunkline.delivery.inbox import Inbox
    from trunkline.delivery.requests import Orphan
    from trunkline.message import Message


class Ledger:
    """Receives events. All methods are called in the thread of the event loop, return at once, and never raise.

    By default they do nothing: a ledger overrides those whose events it records.
    """

    hears_of_deliveries: ClassVar[bool] = True
    """Whether `delivered`, `delivered_one` and `delivered_each` do anything."""

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        """The inbox has delivered all its messages from `first` to `last` that have no separate row."""

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        """The inbox has delivered one message, which has a separate row."""

    def delivered_each(self, inbox: Inbox, messages: Sequence[Message], at_ns: int) -> None:
        """Like `delivered_one` for each."""
        for message in messages:
            self.delivered_one(inbox, message, at_ns)

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        """The message has a fate other than delivery."""

    def retrying(self, inbox: Inbox, message: Message, story: Sequence[Attempt], pause_s: float) -> None:
        """The message failed, and is tried again after a pause."""

    def passed_on(self, inbox: Inbox, successor: Inbox, message: Message, story: Sequence[Attempt]) -> None:
        """The message was passed on to another member of the group."""

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        """A message became a dead letter, at this inbox or without one."""

    def revived(self, letter: DeadLetter, message: Message) -> None:
        """A dead letter was redelivered, as `message`, to the subscriber that failed."""

    def removed(self, letter: DeadLetter) -> None:
        """A dead letter was deleted."""

    def orphaned(self, orphan: Orphan) -> None:
        """An answer arrived whose request is not registered."""

    def claimed(self, orphan: Orphan) -> None:
        """The request of an orphan was registered, and took it."""

    def refused(self, message: Message, who: str, reason: str, at_ns: int) -> None:
        """The message was stored, but not published: a later hook refused it."""

    def fate(
        self, subscriber: str, pattern: str, fate: Fate, first: int, last: int, count: int, reason: str, at_ns: int
    ) -> None:
        """The messages of a range have this fate at a remote subscriber."""

    def keeps_of(self, pattern: str) -> bool:
        """Whether messages on any matching topic are stored."""
        return False

    def attends(self, subscriber: str, pattern: str, since: int) -> None:
        """A remote subscriber is connected. It gets matching messages after number `since`."""

    def leaves(self, subscriber: str) -> None:
        """A remote subscriber is gone, and all messages that it was offered have their fates."""
