"""The way out: messages are built, pass the hooks, are counted and remembered, and reach the broker.

`Bus.publish` has a short cut past all of it for the plainest case; this is the whole way.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
from msgspec.structs import force_setattr

from trunkline.brokers.broker import UNNUMBERED, Broker, Lane
from trunkline.bus.dispatcher import at_work
from trunkline.bus.observe import History, Refusals, Senders
from trunkline.clock import Ids
from trunkline.delivery.route import Route, offer
from trunkline.errors import (
    BusClosed,
    HookFailed,
    HubError,
    MessageExpired,
    MessageTooLarge,
    NotStored,
    PartlyRefused,
    Refused,
)
from trunkline.hooks.hook import Batch, Hook, Passage, in_order
from trunkline.message import NORMAL, Message
from trunkline.settings import Settings


class State(enum.Enum):
    OPEN = enum.auto()
    DRAINING = enum.auto()
    """Nothing new from outside; handlers finish, and may publish and ask while they do."""
    CLOSED = enum.auto()


class Outgoing:
    def __init__(self, broker: Broker, name: str, settings: Settings, hooks: Iterable[Hook]) -> None:
        self._broker = broker
        self._name = name
        self._settings = settings
        self.hooks = in_order(hooks)
        # Without routes every message goes the whole way, through the hooks.
        self._routes: Mapping[str, Route] = {} if self.hooks else broker.routes
        self._numbered_by_hook = any(getattr(hook, "numbers", False) for hook in self.hooks)
        self.ids = Ids(broker.world.uuid7)
        self.history = History(settings.history)
        self._small = settings.history.max_payload_bytes
        self.refusals = Refusals()
        self.senders = Senders(name)
        broker.on_lost(self._lost)
        self.total = 0
        self.unrouted = 0
        self.state = State.OPEN

    def check_open(self) -> None:
        """Raise BusClosed, unless the bus is open, or is finishing its work and this is part of it."""
        if self.state is not State.OPEN and not (self.state is State.DRAINING and at_work.get()):
            raise BusClosed(self._name)

    def weigh(self, message: Message) -> Message:
        """The message, unless it is too large: then MessageTooLarge."""
        if len(message.payload) > self._settings.max_message_bytes:
            error = MessageTooLarge(len(message.payload), self._settings.max_message_bytes)
            self.refuse(message, error)
            raise error
        return message

    def stamp(self, message: Message) -> Message:
        """A copy of a message built by hand with what it lacks: id, time, sender. Raises MessageTooLarge."""
        now_ns = self._broker.world.time_ns()
        return self.weigh(
            msgspec.structs.replace(
                message,
                id=message.id or self.ids.next(now_ns),
                timestamp_ns=message.timestamp_ns or now_ns,
                sender=message.sender or self._name,
                seq=0,
            )
        )

    async def launch(self, message: Message) -> str:
        """Publish one stamped message that nobody else holds; return its id."""
        if self.state is not State.OPEN:
            self.check_open()
        route = self._routes.get(message.topic)
        if route is None and not self.hooks:
            route = self._broker.route(message.topic)
        if route is None:
            plain = message.priority == NORMAL and message.ttl_s is None and not message.requires_ack
            lane = self._broker.lane(message.topic) if plain and not self.hooks else None
            if lane is None:
                await self.send([message])
            else:
                await self._put(lane, message)
            return message.id
        if message.ttl_s is not None and (error := self._too_late(message)) is not None:
            raise error
        if not message.seq:
            # Ours alone so far, so it may get its number in place.
            force_setattr(message, "seq", self._broker.sequence.next())
        self.total += 1
        if len(message.payload) <= self._small:
            self.history.add(message)
        else:
            self.history.remember(message)
        if message.sender != self._name:
            self.senders.add(message.sender)
        route.published += 1
        sinks = route.sinks
        if not route.heard:
            self.unrouted += 1
        if (unsettled := offer(message, sinks)) is not None:
            await unsettled.settle(self._settings.backpressure)
        return message.id

    async def _put(self, lane: Lane, message: Message) -> None:
        """The short cut for a topic with a lane: nothing but header fields set this message apart."""
        # Ours alone so far: it gets its number when the broker has it.
        force_setattr(message, "seq", UNNUMBERED)
        try:
            failures = await lane.put_many((message,), alike=False)
        except (Refused, HubError, MessageTooLarge) as error:
            self.refuse(message, error)
            raise
        self.total += 1
        if not lane.heard:
            self.unrouted += 1
        self.history.remember(message)
        self.senders.add(message.sender)
        if failures:
            raise failures[0][1]

    def _too_late(self, message: Message) -> MessageExpired | None:
        expires_ns = message.expires_ns
        if expires_ns is None:
            return None
        late_ns = self._broker.world.time_ns() - expires_ns
        if late_ns < 0:
            return None
        error = MessageExpired(message.id, late_ns / 1e9)
        self.refuse(message, error)
        return error

    async def send(self, batch: Sequence[Message]) -> None:
        """Publish stamped messages of one topic. What is refused is on record, and raised."""
        self.check_open()
        passage = Passage(self.hooks, self._accept)
        try:
            await passage.run(batch)
        except PartlyRefused as error:
            accepted = {message.id for message in passage.accepted}
            for message, why in error.refused:
                if message.id not in accepted:
                    self.refuse(passage.latest(message), why)
            raise
        except Exception as error:
            self._refuse_rest(batch, passage, error)
            raise
        if len(passage.accepted) < len(batch):
            swallowed = HookFailed("of this bus", RuntimeError("neither forwarded the message nor said why"))
            if self._refuse_rest(batch, passage, swallowed):
                raise swallowed

    def _refuse_rest(self, batch: Batch, passage: Passage, error: Exception) -> int:
        accepted = {message.id for message in passage.accepted}
        rest = [message for message in batch if message.id not in accepted]
        for message in rest:
            self.refuse(passage.latest(message), error)
        return len(rest)

    def refuse_unheard(self, messages: Iterable[Message], error: BaseException) -> None:
        """Put on record what was not even offered to anybody, because those before it failed. The rest has its fate."""
        for message in messages:
            if not self._broker.roster.outcomes(message):
                self.refuse(message, error)

    def refuse(self, message: Message, error: BaseException) -> None:
        """Put on record that the publisher was told no."""
        now_ns = self._broker.world.time_ns()
        self.refusals.add(message.id, self._name, error, now_ns)
        if message.seq > 0 and (ledger := self._broker.roster.ledger) is not None:
            ledger.refused(message, self._name, f"{type(error).__name__}: {error}", now_ns)

    def _lost(self, messages: Batch, error: Exception) -> None:
        """What a publisher did not wait for, and did not arrive."""
        for message in messages:
            # Other buses may share the way out.
            if self.history.find(message.id) is message or message.sender == self._name:
                self.refuse(message, error)

    async def _accept(self, batch: Batch) -> None:
        failures: list[tuple[Message, Exception]] = []
        for _, same in groupby(self._fresh(batch, failures), key=_kind):
            run = list(same)
            topic = run[0].topic
            stored = self._broker.lane(topic) is not None
            self.total += len(run)
            if not self._broker.heard(topic):
                self.unrouted += len(run)
            try:
                await self._broker.publish(run)
            except PartlyRefused as error:
                failures.extend(error.refused)
                self.refuse_unheard([message for message, _ in error.refused], error)
            except asyncio.CancelledError as error:
                if not stored:
                    # What is on its way to a store may get there all the same.
                    self.refuse_unheard(run, error)
                raise
            except NotStored as error:
                self.total -= len(run)
                failures.extend((message, error) for message in run)
                self.refuse_unheard(run, error)
            except Refused as error:
                failures.append((run[0], error))
            finally:
                if stored:
                    self.remember_stored(run)
        if failures:
            raise failures[0][1] if len(batch) == 1 else PartlyRefused(failures, len(batch))

    def _fresh(self, batch: Batch, failures: list[tuple[Message, Exception]]) -> Iterator[Message]:
        """Number and remember what has not expired on its way here."""
        for message in batch:
            if (error := self._too_late(message)) is not None:
                failures.append((message, error))
                continue
            if self._broker.lane(message.topic) is not None:
                # It gets its number when it is stored, and is remembered then.
                yield msgspec.structs.replace(message, seq=UNNUMBERED)
                continue
            kept = self._numbered_by_hook and message.seq > 0
            numbered = message if kept else msgspec.structs.replace(message, seq=self._broker.sequence.next())
            self.history.remember(numbered)
            self.senders.add(numbered.sender)
            yield numbered

    def remember_stored(self, messages: Iterable[Message]) -> None:
        """These have got their numbers, or will; those that were refused have lost theirs."""
        for message in messages:
            if message.seq:
                self.history.remember(message)
                self.senders.add(message.sender)


def _kind(message: Message) -> tuple[str, int, float | None, bool]:
    return message.topic, message.priority, message.ttl_s, message.requires_ack
