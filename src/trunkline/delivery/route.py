"""Routes: the subscribers of one topic, found once and kept until subscriptions change; and delivery to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol

from trunkline import columns
from trunkline.clock import Sequence as Numbers
from trunkline.delivery.batch import Batch
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.parking import Waiting, WaitingBatch
from trunkline.delivery.pending import Failures
from trunkline.delivery.plain_run import PlainRun, RunPart
from trunkline.delivery.shared_body import body_of
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import BackpressureTimeout, Congested, InboxFull, Refused
from trunkline.message import NORMAL, Message
from trunkline.settings import Backpressure
from trunkline.unchecked import number, number_all, take_numbers
from trunkline.wire.frames import PublishHead

MAX_RUN = 256
"""The maximum length of a run. Its messages are built together, and are still in the processor's cache when they are
taken."""


class Sink(Protocol):
    """Takes messages: an inbox, a group that picks one of its members, or the outlets of remote subscribers."""

    def offer(self, message: Message) -> Waiting | None: ...


Take = Callable[[Message], Iterable[Sink] | None]
"""Called with each message; may return further sinks for it. Never waits, never raises."""

InboxOf = Callable[[str], Inbox | None]
"""Returns the only inbox for a topic, if that is known in advance: then `Take` need not be called for each message."""


class Tap:
    """A callback for every message of a route: of the table of requests, or of the router."""

    __slots__ = ("hears", "inbox_of", "take")

    def __init__(self, take: Take, hears: bool = True, inbox_of: InboxOf | None = None) -> None:
        self.take = take
        self.hears = hears
        self.inbox_of = inbox_of


class Unsettled:
    """The remaining work for an offered message: wait for room, and report a refusal to the publisher."""

    __slots__ = ("refused", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.refused: list[Refused] = []

    async def settle(self, limits: Backpressure) -> None:
        """Wait for room where a policy requires it; then raise the first refusal.

        If this is cancelled, the message is dropped where it still waits, and stays where it has arrived.
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
        """Stop waiting: the message is dropped where it still waits."""
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


class _Done(Awaitable[Failures]):
    """The result of a publish that need not wait. Awaiting it costs almost nothing."""

    def __await__(self) -> Generator[Any, None, Failures]:
        return _nothing()


def _nothing() -> Generator[Any, None, Failures]:
    return []
    yield


DONE = _Done()


def is_plain(message: Message) -> bool:
    """Whether the message has normal priority, no ttl, and requires no acknowledgement."""
    return message.priority == NORMAL and message.ttl_s is None and not message.requires_ack


class Engine(Protocol):
    """The part of its broker that a route uses."""

    sequence: Numbers

    @property
    def limits(self) -> Backpressure: ...

    def resolve(self, topic: str) -> Route: ...


class Route:
    """The sinks of messages on `topic`, and the lane to them: after an awaited put, the message is in the inboxes.

    Messages are appended to `plain` inboxes directly, and offered to all other sinks.
    """

    __slots__ = (
        "_engine",
        "all_plain",
        "has_subscribers",
        "local",
        "only",
        "only_inbox",
        "outlets",
        "plain",
        "published",
        "sinks",
        "special",
        "stored",
        "topic",
        "unserved",
    )

    immediate = False

    def __init__(self, topic: str, engine: Engine) -> None:
        self.topic = topic
        self._engine = engine
        self.published = 0
        self.plain: tuple[Inbox, ...] = ()
        self.special: tuple[Sink | Tap, ...] = ()
        self.sinks: tuple[Sink | Tap, ...] = ()
        self.outlets: tuple[Outlet, ...] = ()
        """Remote subscribers: they take batches unopened."""
        self.local: tuple[Sink | Tap, ...] = ()
        """The other sinks."""
        self.only: Outlet | None = None
        """The outlet, if it is the only sink and rejects nothing."""
        self.stored = False
        """Whether messages on this topic are stored before delivery."""
        self.has_subscribers = False
        """Whether a message on this topic reaches a subscriber."""
        self.unserved = True
        """Whether there is no sink at all, not even a rule that may choose a handler. A message can only be stored
        then, for durable subscriptions."""
        self.only_inbox: Inbox | None = None
        """The plain inbox, if it is the only sink."""
        self.all_plain = False
        """Whether there is at least one sink, and all sinks are plain inboxes."""

    def lead_to(self, plain: list[Inbox], special: list[Sink | Tap], outlets: list[Outlet]) -> None:
        self.plain = tuple(plain)
        self.outlets = tuple(outlets)
        self.local = (*plain, *special)
        alone = len(outlets) == 1 and not self.local and outlets[0].overflow is not Overflow.REJECT
        self.only = outlets[0] if alone else None
        self.special = (*special, OutletSink(self.outlets)) if outlets else tuple(special)
        self.sinks = (*self.plain, *self.special)
        self.unserved = not self.sinks
        self.all_plain = bool(plain) and not self.special
        self.only_inbox = plain[0] if self.all_plain and len(plain) == 1 else None
        hears = any(not isinstance(sink, Tap) or sink.hears for sink in self.local)
        self.has_subscribers = hears or any(outlet.hears for outlet in outlets)

    def full(self) -> Iterator[Inbox | Outlet]:
        """The subscribers that publishers wait for."""
        for sink in self.local:
            for inbox in sink.members if isinstance(sink, GroupSink) else (sink,):
                if isinstance(inbox, Inbox) and inbox.parked:
                    yield inbox
        yield from (outlet for outlet in self.outlets if outlet.waiting and outlet.overflow is Overflow.BLOCK)

    def reserve(self, count: int) -> int:
        """Reserve `count` numbers for the messages that are put here next. Returns the first."""
        # `Sequence.reserve`, inlined: every request and every answer calls this.
        sequence = self._engine.sequence
        if sequence.unnumbered is not None:
            sequence.unnumbered.close()
        first = sequence.number + 1
        sequence.number += count
        return first

    def begin_run(self, sender: str, content_type: str) -> PlainRun | None:
        """Start a run that a bus appends to; None if that is not possible now."""
        if not self.all_plain:
            return None
        sequence = self._engine.sequence
        if sequence.unnumbered is not None:
            sequence.unnumbered.close()
        room = min([inbox.takes_run() for inbox in self.plain])
        if room <= 0:
            return None
        sequence.unnumbered = run = PlainRun(self, sender, content_type, min(room, MAX_RUN))
        for inbox in self.plain:
            inbox.begin_run(run)
        return run

    def count_run(self, run: PlainRun) -> None:
        """Number the messages of a closed run, and put them into the inboxes, unopened."""
        sequence = self._engine.sequence
        sequence.unnumbered = None
        count = len(run)
        first = sequence.reserve(count)
        run.number(first)
        self.published += count
        run.share(len(self.plain))
        part = RunPart(run, first, 0, count)
        for inbox in self.plain:
            inbox.end_run(part)

    def put_now(self, message: Message) -> bool:
        return False

    def put(self, message: Message, *, alike: bool) -> Awaitable[Failures]:
        if not message.seq:
            number(message, self._engine.sequence.next())
        self.published += 1
        unsettled = offer(message, self.sinks)
        return DONE if unsettled is None else self._settle(message, unsettled)

    async def _settle(self, message: Message, unsettled: Unsettled) -> Failures:
        try:
            await unsettled.settle(self._engine.limits)
        except Refused as error:
            return [(message, error)]
        return []

    def put_many(self, messages: Sequence[Message], *, alike: bool) -> Awaitable[Failures]:
        count = len(messages)
        if not messages[0].seq:
            number_all(messages, self.reserve(count))
        if not self.special and (alike or is_plain(messages[0])) and self.room_for(count) == count:
            self.extend(messages)
            return DONE
        return self._put_each(messages)

    async def _put_each(self, messages: Sequence[Message]) -> Failures:
        """Put messages that may have to be offered one by one, or to wait for room."""
        engine = self._engine
        plain = is_plain(messages[0])
        count = len(messages)
        failures: Failures = []
        at = 0
        waited = False
        while at < count:
            # Resolved again after each wait: subscriptions may have changed meanwhile.
            route = engine.resolve(self.topic)
            size = route.room_for(count - at) if plain and not route.special else 0
            chunk = messages[at : at + (size or 1)]
            if waited:
                # Others published meanwhile, and numbers must ascend in every inbox. These messages were not offered
                # yet, so they can be renumbered.
                number_all(chunk, route.reserve(len(chunk)))
            at += len(chunk)
            if size:
                route.extend(chunk)
                continue
            route.published += 1
            try:
                if (unsettled := offer(chunk[0], route.sinks)) is not None:
                    waited = True
                    await unsettled.settle(engine.limits)
            except (BackpressureTimeout, Congested) as error:
                # Each of the rest would wait as long, with the same result.
                take_numbers(messages[at:])
                failures.extend((late, error) for late in messages[at - 1 :])
                break
            except asyncio.CancelledError:
                take_numbers(messages[at:])
                raise
            except Refused as error:
                failures.append((chunk[0], error))
        return failures

    def extend(self, messages: Sequence[Message]) -> None:
        """Put plain messages into inboxes that have room for them."""
        size = len(messages)
        self.published += size
        for inbox in self.plain:
            inbox.books.accepted += size
            inbox.queue.extend(messages)
            if inbox.sleepers:
                inbox.wake()

    def room_for(self, wanted: int) -> int:
        """The number of messages, up to `wanted`, that all its plain inboxes have room for."""
        return max(0, min(wanted, *(inbox.room - len(inbox.queue) for inbox in self.plain))) if self.plain else wanted


class OutletSink:
    """The outlets of remote subscribers, for publishers in this process. A message is packed once for all of them."""

    __slots__ = ("_outlets",)

    def __init__(self, outlets: tuple[Outlet, ...]) -> None:
        self._outlets = outlets

    def offer(self, message: Message) -> Waiting | None:
        head = PublishHead(0, message.topic, 1, message.priority)
        batch = Batch(None, head, columns.pack_batch([message]) if type(message.payload) is bytes else body_of(message))
        batch.first = message.seq
        for outlet in self._outlets:
            outlet.offer(batch)
        batch.done()
        if batch.failures:
            refused = batch.failures[0].details
            raise InboxFull(refused["name"], refused["capacity"])
        return WaitingBatch(batch, self._outlets) if batch.waiting else None


class SubscriberGroup:
    """Competing consumers: each message goes to the member with the fewest messages in flight."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        """The number of members, of all patterns."""
        self._turn = 0

    def pick(self, members: Sequence[Inbox]) -> Inbox:
        # Ties are resolved round-robin, so that idle members share evenly.
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
    """An inbox that shares its messages with the other members of its group."""

    __slots__ = ("group", "inbox")

    def __init__(self, group: SubscriberGroup, inbox: Inbox) -> None:
        self.group = group
        self.inbox = inbox


class GroupSink:
    """The members of a group that subscribe to one topic."""

    __slots__ = ("_group", "members")

    def __init__(self, group: SubscriberGroup, members: tuple[Inbox, ...]) -> None:
        self._group = group
        self.members = members

    def offer(self, message: Message) -> Waiting | None:
        there = [member for member in self.members if not member.closed and not member.abandoned]
        # If no member is left, the first one records the message as dropped.
        parked = self._group.pick(there or self.members[:1]).offer(message)
        for member in self.members:
            if member.abandoned and member.leave is not None:
                member.leave(member)
        return parked
