"""The broker inside one process: an awaited publish is in the inboxes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Batch

import msgspec
from msgspec.structs import force_setattr

from trunkline.brokers.broker import Broker, Feature
from trunkline.clock import World
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import Group, GroupSink, InboxOf, Route, Sink, Take, Tap, offer
from trunkline.delivery.stream import Stream
from trunkline.errors import BackpressureTimeout, Congested, PartlyRefused, Refused, StreamClosed
from trunkline.message import NORMAL, Message
from trunkline.settings import Settings
from trunkline.topic import BROADCAST, ENDPOINT_PREFIX, TopicTree, validate_pattern, validate_topic


class Member:
    """An inbox that shares what it gets with the others of its group."""

    __slots__ = ("group", "inbox")

    def __init__(self, group: Group, inbox: Inbox) -> None:
        self.group = group
        self.inbox = inbox


class Link:
    """What matches its pattern also goes to whoever listens on `topic`."""

    __slots__ = ("topic",)

    def __init__(self, topic: str) -> None:
        self.topic = topic


Entry = Inbox | Member | Link | Tap


class MemoryBroker(Broker):
    name = "memory"
    features = frozenset(set(Feature) - {Feature.DURABLE, Feature.STORED})
    here = True

    def __init__(self, world: World | None = None, settings: Settings | None = None) -> None:
        super().__init__(world, settings)
        self.routes: dict[str, Route] = {}
        self._resolved = self.routes
        """All routes in use; `routes` may hold fewer, if some topics are not for the publishers' short cut."""
        self._topics: OrderedDict[str, Route] = OrderedDict()
        self._tree: TopicTree[Entry] = TopicTree()
        self._entries: dict[str, Entry] = {}
        self._groups: dict[str, Group] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._closed = False

    # Publishing

    async def publish(self, batch: Batch[Message]) -> None:
        if not batch:
            return
        first = batch[0]
        if not first.seq:
            batch = [msgspec.structs.replace(message, seq=self.sequence.next()) for message in batch]
        plain = first.priority == NORMAL and first.ttl_s is None and not first.requires_ack
        count = len(batch)
        failures: list[tuple[Message, Exception]] = []
        at = 0
        waited = False
        while at < count:
            # Asked again after each wait: subscriptions may have changed meanwhile.
            route = self.resolve(first.topic)
            if plain and not route.special and (room := room_for(route, count - at)) > 0:
                chunk = batch[at : at + room] if at or room < count else batch
                if waited:
                    self._renumber(chunk)
                self._extend(route, chunk)
                at += room
                continue
            message = batch[at]
            if waited:
                self._renumber([message])
            route.published += 1
            at += 1
            try:
                if (unsettled := offer(message, route.sinks)) is not None:
                    waited = True
                    await unsettled.settle(self.settings.backpressure)
            except (BackpressureTimeout, Congested) as error:
                # The rest would wait as long, one by one, with as little hope.
                failures.extend((late, error) for late in batch[at - 1 :])
                _take_numbers(batch[at:])
                break
            except asyncio.CancelledError:
                _take_numbers(batch[at:])
                raise
            except Refused as error:
                failures.append((message, error))
        if failures:
            raise failures[0][1] if count == 1 else PartlyRefused(failures, count)

    def _extend(self, route: Route, chunk: Batch[Message]) -> None:
        """Put plain messages into inboxes that have room for them."""
        size = len(chunk)
        route.published += size
        for inbox in route.plain:
            inbox.accepted += size
            inbox.queue.extend(chunk)
            if inbox.sleepers:
                inbox.wake()

    def _renumber(self, messages: Batch[Message]) -> None:
        # Others published while the batch waited: numbers must rise in every inbox. Nobody has seen these yet.
        for message in messages:
            force_setattr(message, "seq", self.sequence.next())

    def route(self, topic: str) -> Route | None:
        return self.resolve(topic)

    def forget_route(self, topic: str) -> None:
        self._resolved.pop(topic, None)

    def resolve(self, topic: str) -> Route:
        """The route of a topic: found once, then kept until subscriptions change."""
        if self._closed:
            raise StreamClosed("the memory broker")
        route = self._resolved.get(topic)
        if route is not None:
            return route
        route = self._topics.get(topic)
        if route is None:
            route = Route(validate_topic(topic))
            if len(self._topics) >= self.settings.max_topics:
                forgotten, _ = self._topics.popitem(last=False)
                self._resolved.pop(forgotten, None)
            self._topics[topic] = route
        self._lead(route)
        self._resolved[topic] = route
        return route

    def _lead(self, route: Route) -> None:
        plain: list[Inbox] = []
        special: list[Sink | Tap] = []
        groups: dict[Group, list[Inbox]] = {}
        for entry in self._listeners(route.topic):
            if isinstance(entry, Member):
                groups.setdefault(entry.group, []).append(entry.inbox)
            elif isinstance(entry, Inbox) and entry.gate is None:
                plain.append(entry)
            elif isinstance(entry, Tap) and entry.inbox_of and (inbox := entry.inbox_of(route.topic)) is not None:
                plain.append(inbox)
            else:
                special.append(entry)
        special.extend(GroupSink(group, tuple(members)) for group, members in groups.items())
        route.lead_to(plain, special)

    def _listeners(self, topic: str) -> list[Inbox | Member | Tap]:
        found: dict[Inbox | Member | Tap, None] = {}
        for entry in self._tree.match(topic):
            if not isinstance(entry, Link):
                found[entry] = None
                continue
            # One step only: a link leads to an endpoint, never on to another link.
            for linked in self._tree.match(entry.topic):
                if not isinstance(linked, Link):
                    found[linked] = None
        return list(found)

    # Subscribing

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        if self._closed:
            raise StreamClosed("the memory broker")
        if delivery.durable:
            self.require(Feature.DURABLE)
        if delivery.reads_stored:
            self.require(Feature.STORED)
        validate_pattern(pattern)
        inbox, stream = self.roster.join(pattern, delivery, self._leave)
        entry: Entry = inbox
        if delivery.group is not None:
            group = self._groups.setdefault(delivery.group, Group(delivery.group))
            group.size += 1
            entry = Member(group, inbox)
            inbox.heir_of = self._heir_of(entry)
        self._entries[inbox.name] = entry
        for each in _patterns(pattern):
            self._attach(each, entry)
        return stream

    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        tap = Tap(take, hears, inbox_of)
        self._attach(validate_pattern(pattern), tap)

        def stop() -> None:
            self._detach(pattern, tap)

        return stop

    def link(self, pattern: str, topic: str) -> bool:
        """Send what matches `pattern` also to whoever listens on `topic`; False if that was so already."""
        if (pattern, topic) in self._links:
            return False
        link = Link(validate_topic(topic))
        self._attach(validate_pattern(pattern), link)
        self._links[(pattern, topic)] = link
        return True

    def unlink(self, pattern: str, topic: str) -> bool:
        link = self._links.pop((pattern, topic), None)
        return link is not None and self._detach(pattern, link)

    def _attach(self, pattern: str, entry: Entry) -> None:
        self._tree.add(pattern, entry)
        self._forget_routes()

    def _detach(self, pattern: str, entry: Entry) -> bool:
        self._forget_routes()
        return self._tree.remove(pattern, entry)

    def _forget_routes(self) -> None:
        self._resolved.clear()

    def _leave(self, inbox: Inbox) -> None:
        # By what it is, not by its name: that may be somebody else's by now.
        if inbox.gone:
            return
        entry = self._entries.pop(inbox.name)
        for each in _patterns(inbox.pattern):
            self._detach(each, entry)
        self.roster.part(inbox)
        if isinstance(entry, Member):
            entry.group.size -= 1
            if not entry.group.size:
                del self._groups[entry.group.name]

    def _heir_of(self, leaver: Member) -> Callable[[Message], Inbox | None]:
        """Who of the group gets a message of the one that leaves; None if nobody stays for it."""

        def choose(message: Message) -> Inbox | None:
            stay = tuple(
                entry.inbox
                for entry in self._tree.match(message.topic)
                if isinstance(entry, Member)
                and entry.group is leaver.group
                and entry is not leaver
                and not (entry.inbox.closed or entry.inbox.abandoned)
            )
            return leaver.group.pick(stay) if stay else None

        return choose

    def subscribers(self, topic: str) -> list[str]:
        names: list[str] = []
        for entry in self._listeners(topic):
            if isinstance(entry, Member):
                names.append(entry.inbox.name)
            elif isinstance(entry, Inbox):
                names.append(entry.name)
            elif entry.inbox_of is not None and (inbox := entry.inbox_of(topic)) is not None:
                names.append(inbox.name)
        return names

    def heard(self, topic: str) -> bool:
        return self.resolve(topic).heard

    def published_by_topic(self) -> dict[str, int]:
        return {topic: route.published for topic, route in self._topics.items() if route.published}

    async def aclose(self) -> None:
        self._closed = True
        for inbox in self.roster:
            self._leave(inbox)
        self._forget_routes()


def _take_numbers(messages: Batch[Message]) -> None:
    """These were offered to nobody: without a number, nobody's range of delivered messages covers them."""
    for message in messages:
        force_setattr(message, "seq", 0)


def room_for(route: Route, wanted: int) -> int:
    """For how many messages, up to `wanted`, all inboxes of a route have room."""
    return min(wanted, *(inbox.room - len(inbox.queue) for inbox in route.plain)) if route.plain else wanted


def _patterns(pattern: str) -> tuple[str, ...]:
    """An endpoint also gets what is for everyone."""
    return (pattern, BROADCAST) if pattern.startswith(ENDPOINT_PREFIX) else (pattern,)
