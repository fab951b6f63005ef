"""The feed of a member of a group, or of a subscription that the hub's journal feeds.

The hub is told what became of each message.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict

from msgspec.structs import replace

from trunkline.brokers.broker import Feature
from trunkline.brokers.hub.connection import Connection
from trunkline.brokers.hub.feed import InboxFeed, read
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import QuietLedger
from trunkline.delivery.options import Delivery
from trunkline.errors import Unsupported
from trunkline.message import Message
from trunkline.wire import control
from trunkline.wire.frames import DeliverHead

RETURNED = "returned"
RECENT = 10_000
"""So many numbers that were acknowledged are remembered, as after a reconnection they may come again; and of the dead,
which may be replayed."""


class MemberFeed(InboxFeed, QuietLedger):
    """It is the ledger of its inbox. What it leaves without a word, the hub gives to others."""

    def __init__(self, connection: Connection, number: int, inbox: Inbox, delivery: Delivery) -> None:
        super().__init__(connection, number, inbox, delivery)
        inbox.ledger = self
        self._resumes = delivery.group is None and not delivery.durable
        """Whether nobody but this feed knows how far it came."""
        if not self._resumes:
            inbox.back = lambda message, story: None
        self._came = 0
        """The highest number that came."""
        self._done: list[int] = []
        self._recent: OrderedDict[int, None] = OrderedDict()
        self.durable = delivery.durable
        self._kept: set[int] = set()
        """What was here when the connection was made, and has not come again."""
        self._died: OrderedDict[int, None] = OrderedDict()
        self._scheduled = False
        self._hub = ""

    def take(self, head: DeliverHead, body: memoryview) -> None:
        messages, plain = read(head, body, self.connection)
        self._came = max(self._came, *(head.seqs or (head.first + head.count - 1,)))
        if not messages:
            for seq in head.seqs or range(head.first, head.first + head.count):
                self._nack(seq, Fate.DROPPED, "it could not be read")
        self._outstanding -= head.count
        fresh = [message for message in messages if not self._is_known(message)]
        if self.inbox.closed:
            for message in fresh:
                self._say_nack(message.seq, RETURNED, "its subscriber takes in no more")
        elif fresh:
            self.fill(fresh, plain)
        self.top_up()

    def fill(self, messages: list[Message], plain: bool) -> None:
        if self._died and (again := [message for message in messages if message.seq in self._died]):
            messages = [message for message in messages if message.seq not in self._died]
            for message in again:
                # Replayed: it was let in before, and is no duplicate of itself.
                del self._died[message.seq]
                self.inbox.take_up(message)
        super().fill(messages, plain)

    def request(self, number: int) -> control.Subscribe:
        wanted = super().request(number)
        # After a reconnection it goes on where it was. If nothing had come, it starts as it did the first time.
        return replace(wanted, start=self._came + 1) if self._resumes and self._came else wanted

    def subscribed(self, said: control.Subscribed) -> None:
        if said.role and self.dead_letters is not None:
            self.inbox.role = said.role
            self.dead_letters.returns(said.role)

    def stop(self) -> None:
        """It takes in nothing new."""
        self.connection.say(control.Stop(subscription=self.number))

    def _is_known(self, message: Message) -> bool:
        """Whether it came before, on an earlier connection: acknowledged, or still here."""
        if message.seq in self._recent:
            self._ack(message.seq)
            return True
        if message.seq in self._kept:
            self._kept.remove(message.seq)
            return True
        return False

    def open(self) -> None:
        welcome = self.connection.welcome
        if welcome is not None and self._delivery.reads_stored and Feature.STORED.value not in welcome.features:
            # An older hub would ignore where to start.
            if not self.opening.done():
                self.opening.set_exception(Unsupported("hub", Feature.STORED.value))
            return
        if welcome is not None and welcome.hub != self._hub:
            if self._hub and not self._delivery.durable:
                # Another run of the hub numbers from the beginning.
                self._recent.clear()
                self._died.clear()
            self._hub = welcome.hub
            if self.durable and control.LETTERS_KEPT in welcome.features:
                # Before the hub says so: the first messages may come before that, and die.
                self.inbox.role = self._delivery.group or self.inbox.name
        self._kept = {message.seq for message in self.inbox.unfinished()}
        super().open()

    # The ledger

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        for seq in range(first, last + 1):
            self._ack(seq)

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        self._ack(message.seq)

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        if fate is not Fate.DEAD:
            self._nack(message.seq, fate, reason)

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        self._send_acks()
        self._died[letter.message.seq] = None
        if len(self._died) > RECENT:
            self._died.popitem(last=False)
        # The hub has the message itself: its payload need not travel back, and might be too large to.
        letter = replace(letter, message=replace(letter.message, payload=b""))
        self.connection.say(
            control.Nack(
                subscription=self.number,
                seq=letter.message.seq,
                fate=Fate.DEAD.value,
                reason=letter.reason,
                letter=base64.b64encode(letter.to_bytes()).decode(),
            )
        )

    # What the hub is told

    def _ack(self, seq: int) -> None:
        self._done.append(seq)
        self._recent[seq] = None
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_acks)

    def _nack(self, seq: int, fate: Fate, reason: str) -> None:
        self._say_nack(seq, fate.value, reason)

    def _say_nack(self, seq: int, fate: str, reason: str) -> None:
        self._send_acks()
        self.connection.say(control.Nack(subscription=self.number, seq=seq, fate=fate, reason=reason))

    def _send_acks(self) -> None:
        self._scheduled = False
        if self._done and not self.closed:
            done, self._done = self._done, []
            self.connection.say(control.Ack(subscription=self.number, ranges=ranges(done)))

    def close(self) -> None:
        self._send_acks()
        super().close()


def ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number <= found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
