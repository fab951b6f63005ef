"""All subscribers that a broker serves, their books, and the outcomes of a message among them.

Most are inboxes in this process. A hub also serves remote subscribers, which keep their books themselves.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from trunkline.clock import World
from trunkline.delivery.books import MAX_ROWS_LEFT, Books
from trunkline.delivery.custody import Custody
from trunkline.delivery.dead_letters import DeadLetter, DeadLetters
from trunkline.delivery.dedupe import Window
from trunkline.delivery.eager import EagerSteps
from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.inbox import Gate, Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.options import Delivery
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import DuplicateName, UnknownHandler
from trunkline.expression import compile_filter
from trunkline.message import Message, MessageType
from trunkline.plural import counted
from trunkline.settings import Settings
from trunkline.topic import ENDPOINT_PREFIX, REPLY_PREFIX

log = logging.getLogger("trunkline.delivery")

AnyInbox = TypeVar("AnyInbox", bound=Inbox)

KEPT_LEAVERS = 64
KEPT_FAILURES = 1000
DEPARTED = ""
MAX_PATTERNS = 200
OTHER_PATTERNS = "others"
"""Up to MAX_PATTERNS patterns are counted separately, all others together under this name."""


def group_of(pattern: str) -> str:
    """The pattern under which a subscriber is counted. Reply topics and endpoints are short-lived: each kind counts as
    one.
    """
    for prefix in (REPLY_PREFIX, ENDPOINT_PREFIX):
        if pattern.startswith(prefix):
            return f"{prefix}>"
    return pattern


class Served(Protocol):
    """The common interface of subscribers, local and remote."""

    name: str
    pattern: str
    books: Books

    def account(self) -> Account: ...

    def outcome_of(self, message: Message) -> Outcome | None:
        """The outcome of a message here; None if there is no record that the subscriber had it."""


class Subscribers:
    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.dead_letters = DeadLetters(settings.max_dead_letters, self.redeliver)
        self.announcers: list[Callable[[DeadLetter], None]] = []
        """Callbacks that announce dead letters. If several buses use one broker, only the first is called."""
        self.listeners: list[Callable[[Message, bool], None]] = []
        """Called with each message that a handler or an actor has processed, and whether it succeeded."""
        self.eager = EagerSteps()
        self._failed: dict[str, None] = {}
        self.ledger: Ledger | None = None
        self.exact = False
        """Whether numbers may arrive out of order, so that every delivery needs its own row."""
        self.receivers: dict[str, Callable[[Message], None]] = {}
        """The durable subscriptions, by name. They take back dead messages of any of their members."""
        self._inboxes: dict[str, Inbox] = {}
        self._elsewhere: dict[str, Served] = {}
        self._leavers: deque[Served] = deque()
        self._departed: dict[str, Account] = {}
        """By pattern: the accounts of subscribers that left and are no longer in `_leavers`."""
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[Inbox]:
        return iter(list(self._inboxes.values()))

    def __len__(self) -> int:
        return len(self._inboxes)

    @property
    def count(self) -> int:
        """The number of subscribers, local and remote."""
        return len(self._inboxes) + len(self._elsewhere)

    def record_in(self, ledger: Ledger) -> None:
        """Record the fates of messages in this ledger from now on."""
        self.ledger = ledger
        self.dead_letters.ledger = ledger
        for inbox in self:
            inbox.ledger = ledger

    def join(
        self, pattern: str, delivery: Delivery, leave: Callable[[Inbox], None], kind: type[Stream] = Stream
    ) -> tuple[Inbox, Stream]:
        """Add a subscriber. `leave` is called when its stream is closed."""
        capacity = delivery.capacity or self.settings.backpressure.max_pending
        # Created first: if the filter is not valid, no subscriber is added.
        gate = self._gate(delivery)
        inbox = self.enroll(self._name(pattern, delivery), pattern, capacity, delivery.overflow, Inbox)
        inbox.leave = leave
        inbox.gate = gate
        some = inbox.gate is not None or delivery.group is not None or pattern.startswith(ENDPOINT_PREFIX)
        inbox.books.exact = self.exact or some
        inbox.custody = Custody(
            inbox, lease_s=delivery.lease_s, retry=delivery.retry, chance=self.world.random, on_dead=self._bury
        )
        return inbox, kind(inbox, inbox.custody, ack=delivery.ack)

    def enroll(
        self, name: str, pattern: str, capacity: int, overflow: Overflow, kind: Callable[..., AnyInbox]
    ) -> AnyInbox:
        """Add an inbox under a free name, without a stream. The code that takes from it records the fates."""
        max_parked = self.settings.backpressure.max_pending
        inbox = kind(name, pattern, self.world.time_ns, capacity=capacity, overflow=overflow, max_parked=max_parked)
        inbox.ledger = self.ledger
        inbox.eager = self.eager
        self._inboxes[name] = inbox
        log.debug("%s subscribes to %s (subscribers now: %d)", name, pattern, len(self._inboxes))
        return inbox

    def part(self, inbox: Inbox) -> None:
        """Remove a subscriber. Its messages go to its successor, or are dropped. Removing it twice is fine."""
        if inbox.gone:
            return
        inbox.gone = True
        del self._inboxes[inbox.name]
        if inbox.custody is not None:
            inbox.custody.close()
        left = inbox.discard()
        inbox.close()
        dropped = 0
        # In reverse order: each message is put at the front, before those passed on earlier, so they end up in order.
        for message in reversed(left):
            if not inbox.pass_on(message):
                inbox.settle(message, Fate.DROPPED, "its subscriber left before taking it")
                dropped += 1
        inbox.check_idle()
        self._keep(inbox)
        log.debug("%s left (subscribers now: %d, messages dropped: %d)", inbox.name, len(self._inboxes), dropped)

    # Remote subscribers

    def admit(self, subscriber: Served, before: Served | None = None) -> None:
        """Add a remote subscriber under a free name. `before` is the same subscriber on its last connection, if it had
        one.
        """
        if before is not None:
            if before in self._leavers:
                self._leavers.remove(before)
            else:
                self._departed[self._counted_as(before, self._departed)] -= before.account()
        self._elsewhere[subscriber.name] = subscriber

    def dismiss(self, leaver: Served) -> None:
        """Remove a remote subscriber whose messages all have their fates. `leaver` is kept in its place."""
        del self._elsewhere[leaver.name]
        self._keep(leaver)

    def _keep(self, leaver: Served) -> None:
        self._leavers.append(leaver)
        # Computed each time: the messages that a leaver still held may get their fates later, which changes its size.
        rows = sum(each.books.size for each in self._leavers)
        while len(self._leavers) > KEPT_LEAVERS or (rows > MAX_ROWS_LEFT and len(self._leavers) > 1):
            oldest = self._leavers.popleft()
            rows -= oldest.books.size
            self._depart(oldest)

    def _depart(self, leaver: Served) -> None:
        pattern = self._counted_as(leaver, self._departed)
        self._departed[pattern] = self._departed.get(pattern, Account()) + leaver.account()

    def _counted_as(self, subscriber: Served, counted: Mapping[str, Account]) -> str:
        pattern = group_of(subscriber.pattern)
        return pattern if pattern in counted or len(counted) < MAX_PATTERNS else OTHER_PATTERNS

    def redeliver(self, name: str, message: Message, origin: object) -> None:
        """Deliver a dead message again to the subscriber where it died, or to its successor of the same name."""
        if (receive := self.receivers.get(name)) is not None:
            receive(message)
            return
        inbox = self._inboxes.get(name)
        if inbox is None or inbox.closed:
            raise UnknownHandler(name, list(self._inboxes))
        if inbox is origin:
            inbox.books.reopen()
        else:
            inbox.books.accepted += 1
        inbox.return_to_front(message)

    def takes_back(self, name: str) -> bool:
        """Whether a dead letter of this subscriber can be redelivered to it now."""
        return name in self.receivers or ((inbox := self._inboxes.get(name)) is not None and not inbox.closed)

    def _name(self, pattern: str, delivery: Delivery) -> str:
        if delivery.name is None:
            names = (f"{pattern}#{number}" for number in self._numbers)
            return next(name for name in names if not self._is_taken(name))
        if self._is_taken(delivery.name):
            raise DuplicateName("subscriber", delivery.name)
        return delivery.name

    def free_name(self, wanted: str) -> str:
        """`wanted`, or `wanted` with a number if that name is taken."""
        if not self._is_taken(wanted):
            return wanted
        # A binary search: thousands may want the same name.
        taken, free = 1, 2
        while self._is_taken(f"{wanted}#{free}"):
            taken, free = free, 2 * free
        while free - taken > 1:
            middle = (taken + free) // 2
            taken, free = (middle, free) if self._is_taken(f"{wanted}#{middle}") else (taken, middle)
        return f"{wanted}#{free}"

    def _is_taken(self, name: str) -> bool:
        return name in self._inboxes or name in self._elsewhere

    def _gate(self, delivery: Delivery) -> Gate | None:
        accept = None if delivery.where is None else compile_filter(delivery.where)
        window = None if delivery.dedupe_s is None else Window(delivery.dedupe_s)
        if accept is None and window is None:
            return None
        time_ns = self.world.time_ns
        limit = self.settings.max_message_bytes

        def gate(message: Message) -> str | None:
            if accept is not None and not accept(message, lambda: message.decode(max_bytes=limit)):
                return f"does not match {accept.expression!r}"
            if window is not None and window.seen(message.id, time_ns() / 1e9):
                return f"a duplicate within {window.window_s:g} s"
            return None

        return gate

    def handled(self, message: Message, well: bool) -> None:
        """Notify listeners that a message was processed, or that a request was not answered in time."""
        if not self.listeners:
            return
        if not well and message.type is MessageType.REQUEST:
            self._failed[message.id] = None
            if len(self._failed) > KEPT_FAILURES:
                del self._failed[next(iter(self._failed))]
        for listener in self.listeners:
            listener(message, well)

    def answered(self, request: Message, well: bool) -> None:
        """Notify listeners that a request was answered.

        A failure that its handler already reported is not counted again.
        """
        if well or request.id not in self._failed:
            self.handled(request, well)

    def bury(self, letter: DeadLetter) -> None:
        """Add a dead letter of a message that no subscriber could take, or whose fate is already recorded at its
        subscriber.
        """
        self.dead_letters.add(letter)
        if self.ledger is not None:
            self.ledger.died(letter, None)
        if self.announcers:
            self.announcers[0](letter)

    def _bury(self, letter: DeadLetter, inbox: Inbox, announce: bool) -> None:
        self.dead_letters.add(letter, inbox)
        if inbox.ledger is not None:
            inbox.ledger.died(letter, inbox)
        log.error(
            "%s gave up on message %s on %s after %s: %s",
            letter.subscriber,
            letter.message.id,
            letter.message.topic,
            counted(letter.message.attempts, "attempt"),
            letter.reason,
        )
        if announce and self.announcers:
            self.announcers[0](letter)

    # Queries

    def accounts(self) -> Mapping[str, Account]:
        accounts = {name: each.account() for name, each in (self._inboxes | self._elsewhere).items()}
        left = (leaver.account() for leaver in self._leavers)
        departed = sum((*left, *self._departed.values()), Account())
        if departed.accepted:
            accounts[DEPARTED] = departed
        return accounts

    def accounts_by_pattern(self) -> dict[str, Account]:
        """The same sums, by the pattern of the subscriber, including those that have left."""
        accounts = dict(self._departed)
        for each in (*self._leavers, *self._inboxes.values(), *self._elsewhere.values()):
            pattern = self._counted_as(each, accounts)
            accounts[pattern] = accounts.get(pattern, Account()) + each.account()
        return accounts

    def pending(self) -> int:
        return sum(inbox.in_flight for inbox in self._inboxes.values())

    def outcomes(self, message: Message) -> list[Outcome]:
        everybody = (*self._leavers, *self._inboxes.values(), *self._elsewhere.values())
        found = (each.outcome_of(message) for each in everybody)
        return [outcome for outcome in found if outcome is not None]
