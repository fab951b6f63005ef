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
    """Everything here is called in the event loop thread, returns at once, and never raises.

    By default nothing is kept: a ledger implements what it wants to be told of.
    """

    hears_of_deliveries: ClassVar[bool] = True
    """Whether `delivered`, `delivered_one` and `delivered_each` do anything."""

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        """Everything of this inbox from `first` to `last` that has no row of its own."""

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        """One message, with a row of its own."""

    def delivered_each(self, inbox: Inbox, messages: Sequence[Message], at_ns: int) -> None:
        """As `delivered_one` for each."""
        for message in messages:
            self.delivered_one(inbox, message, at_ns)

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        """It ended otherwise than by delivery."""

    def retrying(self, inbox: Inbox, message: Message, story: Sequence[Attempt], pause_s: float) -> None:
        """It failed, and is tried again after a pause."""

    def passed_on(self, inbox: Inbox, successor: Inbox, message: Message, story: Sequence[Attempt]) -> None:
        """Another member of the group has it now."""

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        """It could not be handled at an inbox, or anywhere."""

    def revived(self, letter: DeadLetter, message: Message) -> None:
        """A dead letter goes back to the subscriber that failed, as `message`."""

    def removed(self, letter: DeadLetter) -> None:
        """Somebody looked at a dead letter and threw it away."""

    def orphaned(self, orphan: Orphan) -> None:
        """An answer came to a request that nobody has registered."""

    def claimed(self, orphan: Orphan) -> None:
        """The request an orphan answers has come."""

    def refused(self, message: Message, who: str, reason: str, at_ns: int) -> None:
        """It was written, and then not published: a later hook said no."""

    def fate(
        self, subscriber: str, pattern: str, fate: Fate, first: int, last: int, count: int, reason: str, at_ns: int
    ) -> None:
        """What a subscriber in another process says of a range."""

    def keeps_of(self, pattern: str) -> bool:
        """Whether anything that matches is written down."""
        return False

    def attends(self, subscriber: str, pattern: str, since: int) -> None:
        """A subscriber elsewhere gets what matches, of messages after number `since`."""

    def leaves(self, subscriber: str) -> None:
        """It is gone, and what it was offered has its fates."""
