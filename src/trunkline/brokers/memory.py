"""The broker within one process: after an awaited publish, the message is in the inboxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from trunkline.brokers.broker import Broker, Feature, Lane
from trunkline.clock import World
from trunkline.delivery.batch import Batch, BatchBody
from trunkline.delivery.handout import HandOut
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.pending import HandedBatch
from trunkline.delivery.route import GroupMember, InboxOf, Route, Take, Tap
from trunkline.delivery.routing import RoutingTree
from trunkline.delivery.stream import Stream
from trunkline.errors import InvalidPayload, StreamClosed, Unsupported
from trunkline.message import Message
from trunkline.settings import Backpressure, Settings
from trunkline.topic import validate_pattern
from trunkline.wire.frames import PublishHead

NEEDS_JOURNAL = "pass journal=DIRECTORY to connect, or start the hub with `trunkline up --journal DIRECTORY`"


class MemoryBroker(Broker):
    name = "memory"
    features = frozenset(
        {Feature.GROUPS, Feature.PRIORITY, Feature.ACKNOWLEDGEMENT, Feature.BACKPRESSURE, Feature.LINKS}
    )
    next_steps: ClassVar[Mapping[Feature, str]] = dict.fromkeys((Feature.DURABLE, Feature.STORED), NEEDS_JOURNAL)
    here = True

    def __init__(self, world: World | None = None, settings: Settings | None = None) -> None:
        super().__init__(world, settings)
        self.tree = RoutingTree(self, self.settings.max_topics)
        self.lanes = self.tree.routes
        self._members: dict[str, GroupMember] = {}
        self._hand_out = HandOut(self.resolve, self.settings.backpressure)

    def served_at(self, address: str) -> None:
        """Called by the hub that serves this broker when it listens."""

    # Publishing

    @property
    def limits(self) -> Backpressure:
        return self.settings.backpressure

    def lane(self, topic: str) -> Lane:
        return self.resolve(topic)

    def forget_route(self, topic: str) -> None:
        self.tree.forget_route(topic)

    def resolve(self, topic: str) -> Route:
        """The route of a topic: found once, then kept until subscriptions change."""
        if self._closed:
            raise StreamClosed("the memory broker")
        return self.tree.route(topic)

    def nearest(self, topic: str) -> list[str]:
        return self.tree.nearest(topic)

    @property
    def routed_upto(self) -> int:
        """All messages up to this number have been offered to their subscribers."""
        return self.sequence.last

    def take(self, batch: Batch) -> bool:
        """Number and route a batch of a remote publisher. The result is reported through the batch.

        Outlets get it unopened. Returns False if the topic is stored: then the batch is numbered when it is stored.
        Raises InvalidTopic.
        """
        route = self.tree.routes.get(batch.topic)
        if route is None:
            route = self.resolve(batch.topic)
        if route.stored:
            self._store(batch)
            return False
        route.published += batch.count
        batch.first = self.sequence.reserve(batch.count)
        if route.local and (messages := self._opened(batch)) is not None:
            batch.waiting += 1
            pending = HandedBatch(batch.topic)
            pending.own(messages, batch)
            self._hand_out.give(pending)
        for outlet in route.outlets:
            outlet.offer(batch)
        batch.done()
        return True

    def take_straight(self, head: PublishHead, body: BatchBody, origin: int) -> int:
        """Like `take`, if the only recipient is a remote subscriber and the batch can be sent now. Returns its first
        number.

        Otherwise returns 0 and changes nothing: then call `take`.
        """
        route = self.tree.routes.get(head.topic)
        if route is None or route.only is None or route.stored:
            return 0
        sequence, count = self.sequence, head.count
        if sequence.unnumbered is not None:
            sequence.unnumbered.close()
        first = sequence.number + 1
        sequence.number += count
        if not route.only.offer_straight(head, body, origin, first):
            sequence.number -= count
            return 0
        route.published += count
        return first

    def withdraw(self, batch: Batch, why: str) -> None:
        """Drop a batch where it still waits for room, because its publisher no longer waits."""
        batch.withdraw()
        for outlet in self.resolve(batch.topic).outlets:
            outlet.withdraw(batch, why)

    def _opened(self, batch: Batch) -> list[Message] | None:
        try:
            return batch.open()
        except InvalidPayload as error:
            batch.fail(-1, "malformed", str(error))
            return None

    def _store(self, batch: Batch) -> None:
        """Like `take`, for a topic that is stored before delivery."""
        raise Unsupported(self.name, Feature.DURABLE.value)

    # Subscribing

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        if self._closed:
            raise StreamClosed("the memory broker")
        if delivery.durable:
            self.require(Feature.DURABLE)
        if delivery.reads_stored:
            self.require(Feature.STORED)
        validate_pattern(pattern)
        inbox, stream = self.served.join(pattern, delivery, self._leave)
        entry: Inbox | GroupMember = inbox
        if delivery.group is not None:
            entry = self._members[inbox.name] = self.tree.join(delivery.group, inbox)
        self.tree.add(pattern, entry)
        return stream

    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        tap = Tap(take, hears, inbox_of)
        self.tree.add(validate_pattern(pattern), tap)
        return lambda: self.tree.remove(pattern, tap)

    def link(self, pattern: str, topic: str) -> bool:
        return self.tree.link(pattern, topic)

    def unlink(self, pattern: str, topic: str) -> bool:
        return self.tree.unlink(pattern, topic)

    def _leave(self, inbox: Inbox) -> None:
        # Checks the inbox itself, not its name: another subscriber may have that name by now.
        if inbox.gone:
            return
        member = self._members.pop(inbox.name, None)
        self.tree.remove(inbox.pattern, member or inbox)
        self.served.part(inbox)
        if member is not None:
            self.tree.leave(member)

    def subscribers(self, topic: str) -> list[str]:
        names: list[str] = []
        for entry in self.tree.listeners(topic):
            if isinstance(entry, GroupMember):
                names.append(entry.inbox.name)
            elif isinstance(entry, Inbox):
                names.append(entry.name)
            elif isinstance(entry, Outlet):
                if entry.hears:
                    names.append(entry.name)
            elif entry.inbox_of is not None and (inbox := entry.inbox_of(topic)) is not None:
                names.append(inbox.name)
        return names

    def has_subscribers(self, topic: str) -> bool:
        return self.resolve(topic).has_subscribers

    def is_unserved(self, topic: str) -> bool:
        """Whether it is certain that nobody gets a message that is published on this topic now."""
        return self.resolve(topic).unserved

    def published_by_topic(self) -> dict[str, int]:
        return self.tree.published()

    async def aclose(self) -> None:
        self._closed = True
        for inbox in self.served:
            self._leave(inbox)
        self.tree.forget()
        await self._hand_out.aclose()
