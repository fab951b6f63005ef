"""The feed of a member of a group, or of a subscription to stored messages: each message is acknowledged."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from trunkline.brokers.broker import Feature
from trunkline.brokers.remote.adapter import Adapter, Arrival, ArrivedBody, SubscribeRequest, SubscriptionTerms
from trunkline.brokers.remote.feed import InboxFeed
from trunkline.delivery.dead_letters import DeadLetter, unreadable_message
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.options import Delivery
from trunkline.errors import InvalidPayload, Unsupported
from trunkline.message import Message

RECENT = 10_000
"""How many numbers are remembered: of acknowledged messages, which may arrive again after a reconnection, and of dead
letters, which may be replayed."""


class MemberFeed(InboxFeed, Ledger):
    """The feed is the ledger of its inbox. The broker delivers messages that are not acknowledged to other members."""

    def __init__(self, adapter: Adapter, number: int, inbox: Inbox, delivery: Delivery) -> None:
        super().__init__(adapter, number, inbox, delivery)
        inbox.ledger = self
        self._resumes = delivery.group is None and not delivery.durable
        """Whether only this feed records how far it has read."""
        if not self._resumes:
            inbox.back = lambda message, story: None
        self._highest = 0
        """The highest message number that has arrived."""
        self._unsent_acks: list[int] = []
        self._acknowledged: dict[int, None] = {}
        """The last RECENT numbers, or up to twice as many, oldest first."""
        self.durable = delivery.durable
        self._kept: set[int] = set()
        """Messages that were in the inbox when the connection was made, and have not arrived again."""
        self._died: OrderedDict[int, None] = OrderedDict()
        self._scheduled = False
        self._run = ""

    def take(self, head: Arrival, body: ArrivedBody) -> None:
        messages, plain = self.read(head, body)
        is_new = head.seqs is None and head.first > self._highest
        self._highest = max(self._highest, *(head.seqs or (head.first + head.count - 1,)))
        self._credit -= head.count
        self._credit_bytes -= len(body)
        fresh = messages if is_new else [message for message in messages if not self._is_known(message)]
        if self.inbox.closed:
            for message in fresh:
                self._not_delivered(message.seq, None, "its subscriber is closed")
        elif fresh:
            self.fill(fresh, plain)
        self.give_credit()

    def unreadable(self, head: Arrival, body: ArrivedBody, error: InvalidPayload) -> None:
        """Called when a batch cannot be read. One dead letter contains its data, if the broker keeps such letters."""
        super().unreadable(head, body, error)
        numbers = list(head.seqs or range(head.first, head.first + head.count))
        letters, custody = self.dead_letters, self.inbox.custody
        keeps = letters is not None and letters.keeps_unreadable and not self._resumes
        if keeps and custody is not None and type(body) is memoryview:
            self.inbox.books.accepted += 1
            now_ns = self.inbox.time_ns()
            custody.bury_unread(unreadable_message(head.topic, numbers.pop(0), body, now_ns, error), error)
        for seq in numbers:
            self._not_delivered(seq, Fate.DROPPED, "it could not be read")

    def fill(self, messages: list[Message], plain: bool) -> None:
        if self._died and (again := [message for message in messages if message.seq in self._died]):
            messages = [message for message in messages if message.seq not in self._died]
            for message in again:
                # A replayed message: the inbox accepted it before, and must not reject it as a duplicate.
                del self._died[message.seq]
                self.inbox.readmit(message)
        super().fill(messages, plain)

    def request(self) -> SubscribeRequest:
        wanted = super().request()
        # After a reconnection the subscription continues after the last message. If none had arrived, it starts as it
        # did the first time.
        return replace(wanted, start=self._highest + 1) if self._resumes and self._highest else wanted

    def subscribed(self, terms: SubscriptionTerms) -> None:
        if terms.role and self.dead_letters is not None:
            self.inbox.role = terms.role
            self.dead_letters.returns(terms.role)

    def stop(self) -> None:
        """Accept no new messages."""
        self.adapter.stop(self.number)

    def _is_known(self, message: Message) -> bool:
        """Whether the message arrived on an earlier connection, and is acknowledged or still in the inbox."""
        if message.seq in self._acknowledged:
            self._acknowledge(message.seq)
            return True
        if message.seq in self._kept:
            self._kept.remove(message.seq)
            return True
        return False

    def open(self) -> None:
        adapter = self.adapter
        if self._delivery.reads_stored and adapter.lacks(Feature.STORED):
            # An older broker would ignore the start position.
            if not self.opening.done():
                self.opening.set_exception(Unsupported(adapter.name, Feature.STORED.value))
            return
        if adapter.run != self._run:
            if self._run and not self._delivery.durable:
                # After a restart the broker numbers its messages from the beginning.
                self._acknowledged.clear()
                self._died.clear()
            self._run = adapter.run
            if self.durable and adapter.keeps_dead_letters:
                # Set before the subscription is confirmed: the first messages may arrive, and become dead letters,
                # before that.
                self.inbox.role = self._delivery.group or self.inbox.name
        self._kept = {message.seq for message in self.inbox.unfinished()}
        super().open()

    # The ledger

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        for seq in range(first, last + 1):
            self._acknowledge(seq)

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        self._acknowledge(message.seq)

    def delivered_each(self, inbox: Inbox, messages: Sequence[Message], at_ns: int) -> None:
        numbers = [message.seq for message in messages]
        self._unsent_acks += numbers
        self._acknowledged.update(dict.fromkeys(numbers))
        self._limit_acknowledged()
        self._schedule()

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        if fate is not Fate.DEAD:
            self._not_delivered(message.seq, fate, reason)

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        self._died[letter.message.seq] = None
        if len(self._died) > RECENT:
            self._died.popitem(last=False)
        self._not_delivered(letter.message.seq, Fate.DEAD, letter.reason, letter)

    # Messages to the broker

    def _acknowledge(self, seq: int) -> None:
        self._unsent_acks.append(seq)
        self._acknowledged[seq] = None
        self._limit_acknowledged()
        self._schedule()

    def _limit_acknowledged(self) -> None:
        remembered = self._acknowledged
        if len(remembered) > 2 * RECENT:
            # Done rarely, because removing numbers one by one takes as long as all other work for them.
            self._acknowledged = dict.fromkeys(islice(remembered, len(remembered) - RECENT, None))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_acks)

    def _not_delivered(self, seq: int, fate: Fate | None, reason: str, letter: DeadLetter | None = None) -> None:
        self._send_acks()
        self.adapter.settle(self.number, seq, fate, reason, letter)

    def _send_acks(self) -> None:
        self._scheduled = False
        if self._unsent_acks and not self.closed:
            acks, self._unsent_acks = self._unsent_acks, []
            self.adapter.acknowledge(self.number, ranges(acks))

    def close(self) -> None:
        self._send_acks()
        super().close()


def ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers as ranges, both ends included."""
    ordered = sorted(set(numbers))
    found: list[tuple[int, int]] = []
    at, count = 0, len(ordered)
    while at < count:
        first = ordered[at]
        end = at + 1
        if end < count and ordered[end] == first + 1:
            # Within a range, the distance between a number and its index does not change.
            end = bisect_right(range(count), first - at, lo=end, key=lambda index: ordered[index] - index)
        found.append((first, ordered[end - 1]))
        at = end
    return found
