"""A feed: one subscription at the hub, and the inbox or the tap here that it fills."""

from __future__ import annotations

import abc
import asyncio
import logging
from typing import TYPE_CHECKING, Any

from trunkline import columns
from trunkline.brokers.hub.connection import Connection, State
from trunkline.brokers.hub.places import Places
from trunkline.brokers.hub.refusals import of_subscription
from trunkline.brokers.hub.reporter import Reporter
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import Take
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import HubRefused, InvalidPayload, Refused
from trunkline.message import Message
from trunkline.wire import control
from trunkline.wire.frames import DeliverHead

if TYPE_CHECKING:
    from trunkline.brokers.hub.dead_letters import HubDeadLetters

log = logging.getLogger("trunkline.link")

ENDLESS = -1
CHECK_S = 0.02
"""While an inbox is full, so often somebody looks whether there is room."""


class Feed(abc.ABC):
    """What it shares: how it is opened, again after each reconnection, and closed."""

    def __init__(self, connection: Connection, number: int, pattern: str) -> None:
        self.connection = connection
        self.number = number
        self.pattern = pattern
        self.secret = connection.secrets.get(pattern, "")
        self.closed = False
        self.missed = 0
        """Published while this was subscribed, and never arrived: the hub or the connection was down."""
        self._opening: asyncio.Future[None] | None = None

    @property
    def opening(self) -> asyncio.Future[None]:
        """Done when the hub has confirmed it for the first time."""
        if self._opening is None:
            # Not before: a bus may be made before its event loop runs.
            self._opening = asyncio.get_running_loop().create_future()
            self._opening.add_done_callback(_retrieve)
        return self._opening

    @abc.abstractmethod
    def request(self, number: int) -> control.Subscribe:
        """What the hub is asked for, under this number."""

    @abc.abstractmethod
    def take(self, head: DeliverHead, body: memoryview) -> None:
        """A batch has come."""

    def open(self) -> None:
        """Say to the hub what is wanted, if there is one; otherwise when there is."""
        if self.connection.state is State.LIVE and not self.closed:
            self.connection.ask_soon(self.request).add_done_callback(self._opened)

    def _opened(self, answer: asyncio.Future[control.Control]) -> None:
        if answer.cancelled() or self.closed:
            return
        error = answer.exception()
        if error is None:
            subscribed = answer.result()
            if isinstance(subscribed, control.Subscribed):
                self.subscribed(subscribed)
            if not self.opening.done():
                self.opening.set_result(None)
        elif isinstance(error, HubRefused):
            if not self.opening.done():
                self.opening.set_exception(of_subscription(error))
            else:
                log.error("the hub does not take the subscription to %s up again: %s", self.pattern, error.text)
        # Otherwise the connection ended: it is opened again with the next one.

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.connection.secrets.pop(self.pattern, None)
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        if self.connection.state is State.LIVE:
            number = self.number
            answer = self.connection.ask_soon(lambda asked: control.Unsubscribe(id=asked, subscription=number))
            answer.add_done_callback(_retrieve)

    def subscribed(self, said: control.Subscribed) -> None:
        return

    def dropped(self, said: control.Dropped) -> None:
        return

    def stop(self) -> None:
        return

    def lost(self) -> None:
        return

    def report_all(self) -> None:
        """The hub wants to know what became of what came."""
        return


class TapFeed(Feed):
    """For the bus itself: answers to requests, rules of routing."""

    def __init__(self, connection: Connection, number: int, pattern: str, take: Take, hears: bool) -> None:
        super().__init__(connection, number, pattern)
        self._take = take
        self._hears = hears

    def request(self, number: int) -> control.Subscribe:
        return control.Subscribe(
            id=number,
            subscription=self.number,
            pattern=self.pattern,
            name=f"tap {self.number}",
            credit=ENDLESS,
            overflow=Overflow.DROP_OLDEST.value,
            tap=True,
            hears=self._hears,
            secret=self.secret,
        )

    def take(self, head: DeliverHead, body: memoryview) -> None:
        for message in read(head, body, self.connection)[0]:
            for sink in self._take(message) or ():
                try:
                    sink.offer(message)
                except Refused as error:
                    log.warning("%s was chosen for %s, and refused it: %s", sink, message.id, error)


class InboxFeed(Feed):
    """Fills an inbox, and gives the hub credit as it is emptied."""

    def __init__(self, connection: Connection, number: int, inbox: Inbox, delivery: Delivery) -> None:
        super().__init__(connection, number, inbox.pattern)
        self.inbox = inbox
        self._delivery = delivery
        self._endless = delivery.overflow in (Overflow.DROP_OLDEST, Overflow.DROP_NEWEST)
        self._outstanding = 0
        """Credit that the hub has, and has not used."""
        self._check: asyncio.TimerHandle | None = None
        self._places = Places()
        self._reporter: Reporter | None = None
        self.dead_letters: HubDeadLetters | None = None
        """Who knows of its dead letters at the hub."""
        inbox.dry = self.top_up

    def open(self) -> None:
        self.connection.open()
        super().open()

    def request(self, number: int) -> control.Subscribe:
        inbox, delivery = self.inbox, self._delivery
        self._outstanding = max(0, inbox.free)
        return control.Subscribe(
            id=number,
            subscription=self.number,
            pattern=self.pattern,
            name=inbox.name,
            credit=ENDLESS if self._endless else self._outstanding,
            capacity=inbox.capacity,
            overflow=inbox.overflow.value,
            group=delivery.group,
            durable=delivery.durable,
            start=delivery.start,
            secret=self.secret,
            reports=True,
        )

    def subscribed(self, said: control.Subscribed) -> None:
        if said.role:
            self.inbox.role = said.role
        if self._reporter is not None:
            self._reporter.again()
        elif said.report_s is not None:
            self.inbox.ledger = self._reporter = Reporter(self.connection, self.number, self.inbox, said.report_s)
            if self.dead_letters is not None:
                self._reporter.handled = self.dead_letters.handled

    def replayed(self, seq: int) -> None:
        """A dead letter of this subscription is in its inbox again."""
        if self._reporter is not None:
            self._reporter.replayed.add(seq)

    def has_again(self, seq: int) -> bool:
        """Whether a dead letter was replayed here, and has no other fate yet."""
        return self._reporter is not None and seq in self._reporter.replayed

    def report(self) -> None:
        """Tell the hub at once what there is to tell."""
        if self._reporter is not None:
            self._reporter.report()

    def report_all(self) -> None:
        if self._reporter is not None:
            self._reporter.report_all()

    def take(self, head: DeliverHead, body: memoryview) -> None:
        if self.closed:
            return
        if missing := self._places.passed(head.origin, head.topic, head.priority, head.position, head.count):
            self._miss(missing, head.topic)
        messages, plain = read(head, body, self.connection)
        self._outstanding -= head.count
        if self._reporter is not None:
            self._reporter.came(head.first, head.first + head.count - 1)
        if messages:
            self.fill(messages, plain)
        elif self._reporter is not None:
            self._reporter.unreadable(head.first, head.first + head.count - 1)
        if not self._endless:
            self.top_up()

    def fill(self, messages: list[Message], plain: bool) -> None:
        inbox = self.inbox
        if plain and inbox.gate is None and len(inbox.queue) + len(messages) <= inbox.room:
            inbox.books.accepted += len(messages)
            inbox.queue.extend(messages)
            if inbox.sleepers:
                inbox.wake()
            return
        for message in messages:
            try:
                inbox.offer(message)
            except Refused as error:
                # On record already, in the books of the inbox.
                log.debug("%s refused %s: %s", inbox.name, message.id, error)

    def top_up(self) -> None:
        """Give the hub credit for the room there is, if that is worth a message."""
        inbox = self.inbox
        if self._endless or self.closed or inbox.closed:
            return
        room = inbox.free - self._outstanding - len(inbox.parked)
        if room > 0 and (room >= inbox.capacity // 4 or not self._outstanding):
            self._outstanding += room
            self.connection.say(control.Credit(subscription=self.number, messages=room))
        if self._outstanding < max(1, inbox.capacity // 4) and self._check is None:
            # Whoever takes from it slowly does not tell.
            self._check = asyncio.get_running_loop().call_later(CHECK_S, self._look)

    def _look(self) -> None:
        self._check = None
        self.top_up()

    def _miss(self, count: int, topic: str) -> None:
        log.warning("%s misses %d messages on %s: the hub or the connection was down", self.inbox.name, count, topic)
        self.missed += count
        self.inbox.books.miss(count)

    def dropped(self, said: control.Dropped) -> None:
        place = (said.origin, said.topic, said.priority, said.position, said.count)
        count = said.count - (self._places.overlap(*place) if said.origin else 0)
        if missing := self._places.passed(*place):
            self._miss(missing, said.topic)
        inbox = self.inbox
        inbox.books.drop_elsewhere(count, said.ranges, said.reason, inbox.time_ns())

    def close(self) -> None:
        if self._reporter is not None:
            self._reporter.close()
        super().close()
        if self._check is not None:
            self._check.cancel()


def read(head: DeliverHead, body: memoryview, connection: Connection) -> tuple[list[Message], bool]:
    """The messages of a frame, and whether all are plain; none if it holds something else, which is counted."""
    seqs = range(head.first, head.first + head.count) if head.seqs is None else head.seqs
    try:
        return columns.read_batch(head.topic, body, seqs)
    except InvalidPayload as error:
        connection.malformed += 1
        log.error("%d messages on %s could not be read: %s", head.count, head.topic, error)
        return [], True


def _retrieve(future: asyncio.Future[Any]) -> None:
    # Nobody may ask for it: that is no reason to complain.
    if not future.cancelled():
        future.exception()
