"""Routes: the subscribers of one topic, found once and kept until subscriptions change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from trunkline import columns
from trunkline.delivery.batch import Batch
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.parking import Waiting, WaitingBatch
from trunkline.errors import InboxFull, Refused
from trunkline.message import Message
from trunkline.settings import Backpressure
from trunkline.wire.frames import PublishHead


class Sink(Protocol):
    """Takes messages: an inbox, a group that picks one of its members, or the outlets to subscribers elsewhere."""

    def offer(self, message: Message) -> Waiting | None: ...


Take = Callable[[Message], Iterable[Sink] | None]
"""Sees a message as it passes; may name further sinks for it. Never waits, never raises."""

InboxOf = Callable[[str], Inbox | None]
"""The one inbox that gets everything on a topic, if that is known beforehand: then nobody has to be asked each time."""


class Tap:
    """Sees every message of a route: the table of requests, the router."""

    __slots__ = ("hears", "inbox_of", "take")

    def __init__(self, take: Take, hears: bool = True, inbox_of: InboxOf | None = None) -> None:
        self.take = take
        self.hears = hears
        self.inbox_of = inbox_of


class Unsettled:
    """What is left to do for a message after it was offered: wait for room, tell the publisher of a refusal."""

    __slots__ = ("refused", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.refused: list[Refused] = []

    async def settle(self, limits: Backpressure) -> None:
        """Wait for room where a policy says so; then raise the first refusal.

        Cancelled, the message is dropped where it still waited and stays where it has arrived.
        """
        try:
            for parked in self.waiting:
                try:
                    await parked.wait(limits)
                except Refused as error:
                    self.refused.append(error)
        finally:
            self.drop("its publisher was cancelled while waiting for room")
        if self.refused:
            raise self.refused[0]

    def drop(self, why: str) -> None:
        """Wait no longer."""
        for parked in self.waiting:
            parked.unpark(why)


def offer(message: Message, sinks: Iterable[Sink | Tap]) -> Unsettled | None:
    """Offer one message to each sink; None if all of them took it."""
    unsettled: Unsettled | None = None
    for sink in sinks:
        for each in (sink.take(message) or ()) if isinstance(sink, Tap) else (sink,):
            try:
                parked = each.offer(message)
            except Refused as error:
                unsettled = unsettled or Unsettled()
                unsettled.refused.append(error)
            else:
                if parked is not None:
                    unsettled = unsettled or Unsettled()
                    unsettled.waiting.append(parked)
    return unsettled


class Route:
    """Where messages on `topic` go. `plain` inboxes are written directly by the fast path, the rest is offered."""

    __slots__ = ("all_plain", "heard", "local", "outlets", "plain", "published", "sinks", "special", "stored", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.published = 0
        self.plain: tuple[Inbox, ...] = ()
        self.special: tuple[Sink | Tap, ...] = ()
        self.sinks: tuple[Sink | Tap, ...] = ()
        self.outlets: tuple[Outlet, ...] = ()
        """Subscribers elsewhere: they take batches unopened."""
        self.local: tuple[Sink | Tap, ...] = ()
        """The other sinks."""
        self.stored = False
        """Whether messages here are stored before anybody sees them."""
        self.heard = False
        """Whether a message here reaches anybody."""
        self.all_plain = False
        """Whether it reaches somebody, and plain inboxes only."""

    def lead_to(self, plain: list[Inbox], special: list[Sink | Tap], outlets: list[Outlet]) -> None:
        self.plain = tuple(plain)
        self.outlets = tuple(outlets)
        self.local = (*plain, *special)
        self.special = (*special, OutletSink(self.outlets)) if outlets else tuple(special)
        self.sinks = (*self.plain, *self.special)
        self.all_plain = bool(plain) and not self.special
        hears = any(not isinstance(sink, Tap) or sink.hears for sink in self.local)
        self.heard = hears or any(outlet.hears for outlet in outlets)


class OutletSink:
    """Subscribers elsewhere, for publishers in this process: a message is packed once for all of them."""

    __slots__ = ("_outlets",)

    def __init__(self, outlets: tuple[Outlet, ...]) -> None:
        self._outlets = outlets

    def offer(self, message: Message) -> Waiting | None:
        head = PublishHead(0, message.topic, 1, message.priority)
        batch = Batch(None, head, columns.pack_batch([message]))
        batch.first = message.seq
        for outlet in self._outlets:
            outlet.offer(batch)
        batch.done()
        if batch.failures:
            refused = batch.failures[0].details
            raise InboxFull(refused["name"], refused["capacity"])
        return WaitingBatch(batch, self._outlets) if batch.waiting else None


class Group:
    """Competing consumers: each message goes to one member, the one with the least to do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        """How many members it has, on whatever topics."""
        self._turn = 0

    def pick(self, members: Sequence[Inbox]) -> Inbox:
        # Ties go round in turn, so that idle members share evenly.
        self._turn += 1
        start = self._turn % len(members)
        best = members[start]
        load = best.in_flight
        for member in (*members[start + 1 :], *members[:start]):
            if load == 0:
                break
            if member.in_flight < load:
                best, load = member, member.in_flight
        return best


class GroupMember:
    """An inbox that shares what it gets with the others of its group."""

    __slots__ = ("group", "inbox")

    def __init__(self, group: Group, inbox: Inbox) -> None:
        self.group = group
        self.inbox = inbox


class GroupSink:
    """The members of a group that subscribe to one topic."""

    __slots__ = ("_group", "_members")

    def __init__(self, group: Group, members: tuple[Inbox, ...]) -> None:
        self._group = group
        self._members = members

    def offer(self, message: Message) -> Waiting | None:
        there = [member for member in self._members if not member.closed and not member.abandoned]
        # Nobody there: the books of the first say that it is gone.
        parked = self._group.pick(there or self._members[:1]).offer(message)
        for member in self._members:
            if member.abandoned and member.leave is not None:
                member.leave(member)
        return parked
