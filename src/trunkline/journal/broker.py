"""The broker with a journal: messages are on disk before delivery, and durable subscriptions survive a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from trunkline.brokers.broker import Feature, Lane
from trunkline.brokers.memory import MemoryBroker
from trunkline.delivery.batch import Batch
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import END, Delivery
from trunkline.delivery.pending import Failures, Owner, RunOwner
from trunkline.delivery.plain_run import PlainRun
from trunkline.delivery.route import Route
from trunkline.delivery.stream import Stream
from trunkline.errors import DuplicateName, InvalidSettings
from trunkline.journal import attendance
from trunkline.journal.cursor import Cursor, unpack
from trunkline.journal.feeder import Feeder
from trunkline.journal.intake import MAX_ROW_MESSAGES, PendingWrite
from trunkline.journal.journal import Journal
from trunkline.journal.kept import recall
from trunkline.journal.repeated import RepeatedBatches
from trunkline.journal.settings import TopicStorage
from trunkline.journal.start import Start, start_of
from trunkline.journal.store import JournalStore
from trunkline.message import Message
from trunkline.plural import counted
from trunkline.settings import Settings
from trunkline.topic import NEVER_DURABLE, TopicTree, covers, is_wild, matches, nearest, overlaps, validate_pattern

log = logging.getLogger("trunkline.journal")


PATTERNS = "SELECT pattern FROM cursors"
SOON = 512
"""After this many messages of a pipeline, they are passed to the writer without waiting for the end of the iteration.

Of the usual thousand messages in flight, the writer then writes one half while the other half is published.
"""


class JournalLane:
    """The lane of a topic that the journal stores."""

    __slots__ = ("_broker", "_pending", "_put", "feeders", "has_subscribers", "topic", "waits")

    plain = None
    stored = True
    immediate = False

    def __init__(self, broker: JournalBroker, topic: str, waits: bool) -> None:
        self._broker = broker
        self.topic = topic
        self.waits = waits
        self.feeders: list[Feeder] = broker.feeders_of(topic)
        self.has_subscribers = broker.has_subscribers(topic)
        self._pending = broker.intake.pending
        self._put = broker.intake.put

    @property
    def unserved(self) -> bool:
        return self._broker.is_unserved(self.topic)

    def reserve(self, count: int) -> int:
        return 0

    def put_now(self, message: Message) -> bool:
        return False

    def put(self, message: Message, *, alike: bool) -> asyncio.Future[Failures]:
        if not alike:
            return self.put_many((message,), alike=False)
        return self._put(self.topic, message, self.waits)

    def post(self, message: Message, owner: Owner) -> bool:
        pending = self._pending.get(self.topic)
        if pending is not None and pending.owner is owner and pending.run is None:
            messages = pending.messages
            messages.append(message)
            if len(messages) == SOON:
                self._broker.intake.hand_over()
        else:
            self._broker.intake.post(self.topic, message, self.waits, owner)
        return True

    def owned_run(self, sender: str, content_type: str, owner: RunOwner) -> PlainRun | None:
        if self.topic in self._pending:
            return None
        run = PlainRun(self, sender, content_type, SOON)
        self._broker.intake.begin_run(run, self.waits, owner)
        return run

    def lengthen_run(self, run: PlainRun) -> None:
        self._broker.intake.hand_over()
        if run.room:
            run.room = min(run.room + SOON, MAX_ROW_MESSAGES)

    def count_run(self, run: PlainRun) -> None:
        """Nothing: its messages get their numbers when they are passed to the writer."""

    def put_many(self, messages: Sequence[Message], *, alike: bool) -> asyncio.Future[Failures]:
        return self._broker.intake.put_many(self.topic, messages, self.waits, alike=alike)


class DurableStream(Stream):
    """A stream whose cursor is in the journal. Unacknowledged messages are delivered again, also after a restart."""

    opening: asyncio.Future[None] | None = None
    feeder: Feeder

    @property
    def busy(self) -> bool:
        # After a stop it gets no more messages: those in the journal wait for other subscribers.
        return super().busy or not (self.inbox.closed or self.feeder.idle)

    async def quiet(self) -> None:
        """Return when nothing is in flight here, and nothing in the journal waits for this subscription."""
        while self.busy:
            await super().quiet()
            if not self.inbox.closed:
                await self.feeder.quiet()

    async def opened(self) -> None:
        if self.opening is not None:
            # Several tasks may wait for it; one that is cancelled must not cancel it for the others.
            await asyncio.shield(self.opening)

    async def aclose(self) -> None:
        await super().aclose()
        if not self.feeder.durable:
            await self.feeder.stop()


class JournalBroker(MemoryBroker):
    name = "memory with a journal"
    features = MemoryBroker.features | {Feature.DURABLE, Feature.STORED}
    store: JournalStore

    def __init__(self, journal: Journal, settings: Settings | None = None, *, owns_journal: bool = False) -> None:
        super().__init__(journal.world, settings)
        self.journal = journal.open()
        self._owns_journal = owns_journal
        self.lanes: dict[str, Lane] = {}
        self.tree.changed = self._forget_routes
        self.intake = journal.intake
        self.sequence = self.intake.numbers
        self.intake.give = self._give
        self.intake.stored = self._stored
        self._feeders: dict[str, Feeder] = {}
        self._feeder_tree: TopicTree[Feeder] = TopicTree()
        self._member_of: dict[str, Feeder] = {}
        self.served.record_in(journal.ledger)
        lost, attended = attendance.settle(journal.reader, journal.ledger, self.world.time_ns())
        if lost:
            log.warning("the last run of the hub was killed: %s lost", counted(lost, "delivery", "deliveries"))
        self.store = JournalStore(self, attended)
        self._repeated = RepeatedBatches(self.intake, self.store.look_for, self._put_batch)
        self.store.dead_letters.restore(self.settings.max_dead_letters)

    def served_at(self, address: str) -> None:
        self.journal.name_hub(address)

    # Publishing

    def lane(self, topic: str) -> Lane:
        """The lane of a stored topic leads through the journal, that of any other directly to its route."""
        lane = self.lanes.get(topic)
        if lane is None:
            self.check_open()
            route = self.resolve(topic)
            durable = self.journal.settings.keeps(topic) is TopicStorage.DURABLE
            lane = JournalLane(self, topic, durable) if route.stored else route
            if len(self.lanes) >= self.settings.max_topics:
                self.lanes.clear()
            self.lanes[topic] = lane
        return lane

    def resolve(self, topic: str) -> Route:
        known = topic in self.tree.routes
        route = super().resolve(topic)
        if not known:
            route.stored = self.journal.settings.keeps(topic) is not TopicStorage.NOT
        return route

    def forget_route(self, topic: str) -> None:
        super().forget_route(topic)
        self.lanes.pop(topic, None)

    def _forget_routes(self) -> None:
        self.lanes.clear()

    def _store(self, batch: Batch) -> None:
        lane = self.lane(batch.topic)
        messages = self._opened(batch)
        if not isinstance(lane, JournalLane) or messages is None:
            batch.done()
            return
        if batch.again or batch.topic in self._repeated.lines:
            self._repeated.take(batch, messages)
        else:
            self.intake.put_batch(batch, messages, lane.waits)

    def _put_batch(self, batch: Batch, messages: list[Message]) -> None:
        lane = self.lane(batch.topic)
        assert isinstance(lane, JournalLane)
        self.intake.put_batch(batch, messages, lane.waits)

    def _give(self, pending: PendingWrite) -> None:
        """Deliver messages to the current subscribers."""
        if self._closed:
            self.intake.through(pending)
            return
        route = self.resolve(pending.topic)
        if pending.run is not None and (route.plain or route.special or self._hand_out.waits(pending.topic)):
            pending.open()
        messages = pending.messages
        for start, batch in pending.batches:
            batch.first = messages[start].seq
            for outlet in route.outlets:
                outlet.offer(batch)
        easy = pending.plain and not route.special and not self._hand_out.waits(pending.topic)
        if pending.run is not None:
            route.published += pending.count
            self.intake.through(pending)
        elif easy and route.room_for(len(messages)) == len(messages):
            route.extend(messages)
            self.intake.through(pending)
        else:
            route.published += len(messages)
            self._hand_out.give(pending)

    def _stored(self, pending: PendingWrite) -> None:
        """Deliver committed messages to durable subscriptions. They get only messages that they can read again."""
        lane = self.lane(pending.topic) if not self._closed else None
        if isinstance(lane, JournalLane) and lane.feeders:
            pending.open()
            for feeder in lane.feeders:
                feeder.live(pending.messages)

    @property
    def routed_upto(self) -> int:
        return min(self.sequence.last, self.intake.committed)

    def has_subscribers(self, topic: str) -> bool:
        return bool(self._feeder_tree.match(topic)) or super().has_subscribers(topic)

    def is_unserved(self, topic: str) -> bool:
        """A durable subscription gets the message later, also one that nobody has opened since the journal was."""
        if not super().is_unserved(topic) or self._feeder_tree.match(topic):
            return False
        return not any(matches(pattern, topic) for (pattern,) in self.journal.reader.query(PATTERNS))

    def nearest(self, topic: str) -> list[str]:
        return nearest(topic, (*super().nearest(topic), *self._feeder_tree.patterns()))

    async def flush(self) -> None:
        await self.journal.flush()

    # Subscribing

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        if delivery.durable:
            return self._subscribe_durably(pattern, delivery)
        if delivery.start != END:
            return self._subscribe_from(pattern, delivery)
        stream = super().subscribe(pattern, delivery)
        inbox = stream.inbox
        if is_wild(pattern) or not self._is_uniform(pattern):
            # With several topics, numbers do not always arrive in ascending order: one topic may wait in line, and some
            # messages are delivered before their commit. Ranges of numbers would be wrong.
            stream.keep_exact()
        recall(self.journal, inbox)
        return stream

    def _is_uniform(self, pattern: str) -> bool:
        """Whether all matching topics are stored in the same way, or none is."""
        settings = self.journal.settings
        if any(overlaps(pattern, own) for own in NEVER_DURABLE):
            return any(covers(own, pattern) for own in NEVER_DURABLE)
        if any(covers(durable, pattern) for durable in settings.durable):
            return True
        if any(overlaps(pattern, durable) for durable in settings.durable):
            return False
        return any(covers(recorded, pattern) for recorded in settings.recorded) or not any(
            overlaps(pattern, recorded) for recorded in settings.recorded
        )

    def _subscribe_durably(self, pattern: str, delivery: Delivery) -> Stream:
        self.check_open()
        name = delivery.group or delivery.name
        assert name is not None
        feeder = self._feeders.get(name)
        if feeder is not None:
            feeder.part_from_abandoned()
        new = feeder is None
        if feeder is None:
            feeder = self._make_feeder(name, validate_pattern(pattern), delivery.start)
        elif not feeder.durable:
            raise DuplicateName("subscriber", name)
        elif feeder.cursor.pattern != pattern:
            raise InvalidSettings(
                f"the durable subscription {name!r} is on {feeder.cursor.pattern!r}, not on {pattern!r}: "
                f"use another name, or forget the old one with bus.forget_durable({name!r})"
            )
        elif delivery.group is None and feeder.members:
            raise DuplicateName("subscriber", name)
        _, stream = self._join(pattern, delivery)
        if new:
            self._register(feeder)
        self._feed(stream, feeder)
        return stream

    def _subscribe_from(self, pattern: str, delivery: Delivery) -> Stream:
        """A plain subscription that starts in the past. It reads from the journal, which stores no cursor for it."""
        self.check_open()
        self._check_kept(validate_pattern(pattern))
        name = delivery.name
        taken = "SELECT 1 FROM cursors WHERE name = ?"
        if name is not None and (name in self._feeders or self.journal.reader.query(taken, (name,))):
            raise DuplicateName("subscriber", name)
        high, start = start_of(delivery.start, self.sequence.last, pattern)
        inbox, stream = self._join(pattern, delivery)
        # A client of the hub may have a higher position from another journal that the hub had before.
        cursor = Cursor(inbox.name, pattern, min(high, self.sequence.last))
        feeder = Feeder(cursor, self.journal, self.world, start, durable=False)
        self._register(feeder)
        self._feed(stream, feeder)
        return stream

    def _join(self, pattern: str, delivery: Delivery) -> tuple[Inbox, DurableStream]:
        capacity = delivery.capacity or min(self.journal.settings.prefetch, self.settings.backpressure.max_pending)
        delivery = replace(delivery, capacity=capacity)
        inbox, stream = self.served.join(pattern, delivery, self._leave_durable, DurableStream)
        stream.keep_exact()
        assert isinstance(stream, DurableStream)
        return inbox, stream

    def _feed(self, stream: DurableStream, feeder: Feeder) -> None:
        stream.feeder = feeder
        stream.opening = feeder.join(stream.inbox)
        self._member_of[stream.name] = feeder

    def _check_kept(self, pattern: str) -> None:
        settings = self.journal.settings
        if not any(covers(kept, pattern) for kept in (*settings.durable, *settings.recorded)):
            raise InvalidSettings(
                f"{pattern!r} is not kept by the journal, so a subscription that reads from there would miss messages: "
                f"durable topics are {', '.join(settings.durable) or 'none'}"
            )

    def _make_feeder(self, name: str, pattern: str, start: int | str) -> Feeder:
        self._check_kept(pattern)
        known = self.journal.reader.query("SELECT pattern, high, pending FROM cursors WHERE name = ?", (name,))
        first: Start | None = None
        if known:
            written, high, pending = known[0]
            if written != pattern:
                raise InvalidSettings(
                    f"the durable subscription {name!r} is on {written!r}, not on {pattern!r}: "
                    f"use another name, or forget the old one with bus.forget_durable({name!r})"
                )
            cursor = Cursor(name, pattern, high, unpack(pending))
        else:
            high, first = start_of(start, self.sequence.last, pattern)
            cursor = Cursor(name, pattern, high)
            cursor.changed = True
        return Feeder(cursor, self.journal, self.world, first)

    def _register(self, feeder: Feeder) -> None:
        feeder.register()
        name = feeder.cursor.name
        self._feeders[name] = feeder
        self._feeder_tree.add(feeder.cursor.pattern, feeder)
        self.lanes.clear()
        self.served.receivers[name] = feeder.give_again

    def feeders_of(self, topic: str) -> list[Feeder]:
        return self._feeder_tree.match(topic)

    def _leave_durable(self, inbox: Inbox) -> None:
        if inbox.gone:
            return
        feeder = self._member_of.pop(inbox.name)
        if inbox.custody is not None:
            feeder.pauses = inbox.custody.pauses()
        feeder.part(inbox)
        self.served.part(inbox)
        if feeder.durable:
            feeder.feed()
            return
        # It has no successor, so only the fates of its messages are written.
        self._drop(feeder)
        feeder.stop_soon()
        feeder.write_down(self.journal.ledger)
        feeder.let_go()

    def _leave(self, inbox: Inbox) -> None:
        if inbox.name in self._member_of:
            self._leave_durable(inbox)
        else:
            super()._leave(inbox)

    async def end_feeder(self, name: str) -> None:
        """Stop feeding a durable subscription, which has no subscribers, before it is removed."""
        feeder = self._feeders.get(name)
        if feeder is not None and feeder.durable:
            if feeder.members:
                raise DuplicateName("subscriber", name)
            self._drop(feeder)
            await feeder.stop()
            # The fates of delivered messages are kept.
            await self.journal.flush()
            feeder.let_go()

    def _drop(self, feeder: Feeder) -> None:
        del self._feeders[feeder.cursor.name]
        del self.served.receivers[feeder.cursor.name]
        self._feeder_tree.remove(feeder.cursor.pattern, feeder)
        self.lanes.clear()

    def subscribers(self, topic: str) -> list[str]:
        durable = [member.name for feeder in self._feeder_tree.match(topic) for member in feeder.members]
        return [*super().subscribers(topic), *durable]

    # Closing

    def pause(self) -> None:
        for feeder in self._feeders.values():
            feeder.pause()

    async def aclose(self) -> None:
        if self._closed:
            return
        self.pause()
        await self._repeated.aclose()
        for feeder in list(self._feeders.values()):
            await feeder.stop()
        await super().aclose()
        if self._owns_journal:
            await self.journal.aclose()
        else:
            await self.journal.flush()
        for feeder in list(self._feeders.values()):
            feeder.let_go()
        self.lanes.clear()
