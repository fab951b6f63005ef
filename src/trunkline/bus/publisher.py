"""The publisher of a bus: builds messages, runs the hooks, puts messages into the lane of their topic, and counts.

`Bus.publish` has an inlined copy of this for the simplest message.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any

import msgspec

from trunkline import codec
from trunkline.brokers.broker import Broker, Lane
from trunkline.bus.lifecycle import OPEN, Lifecycle
from trunkline.bus.observe import Traffic
from trunkline.bus.sampled_lanes import SampledLanes, TopicLanes
from trunkline.clock import Ids
from trunkline.delivery.eager import EVERYONE
from trunkline.delivery.pending import Failures
from trunkline.delivery.plain_run import PlainRun
from trunkline.delivery.route import DONE
from trunkline.errors import HubError, MessageExpired, MessageTooLarge, PartlyRefused, Refused, UsageError
from trunkline.hooks.head import HeadSampling
from trunkline.hooks.hook import Batch, HookChain
from trunkline.message import ASKING, NORMAL, Fields, Message, MessageType
from trunkline.settings import Settings
from trunkline.topic import validate_topic
from trunkline.unchecked import numbered, seal, unchecked, unchecked_many, without_numbers

RAW = codec.RAW
encode = codec.encode
REQUEST = MessageType.REQUEST

KNOWN_FIELDS = frozenset(Fields.__annotations__)
OTHER_NAMES = ("timeout_s", "reply")
"""Keywords that some methods accept in addition to the fields of a message."""


def _unknown_field(name: str) -> str:
    near = difflib.get_close_matches(name, (*KNOWN_FIELDS, *OTHER_NAMES), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(KNOWN_FIELDS))}"
    return f"a message has no field {name!r}: {hint}"


class BusPublisher:
    def __init__(
        self, broker: Broker, name: str, settings: Settings, hooks: HookChain, traffic: Traffic, life: Lifecycle
    ) -> None:
        self._broker = broker
        self._name = name
        self._hooks = hooks
        self._traffic = traffic
        self._life = life
        self._eager = broker.served.eager
        self.max_bytes = settings.max_message_bytes
        self.small = min(settings.history.max_payload_bytes, settings.max_message_bytes)
        """Payloads up to this size need no check against the limits of messages and of the history."""
        self.content_type = settings.content_type
        self.time_ns = broker.world.time_ns
        self.ids = Ids(broker.world.uuid7)
        self.lanes: TopicLanes = {}
        """The lanes that messages may be put into directly. There are none before the bus is entered and when it
        closes. With hooks, they are only for messages that need none of them."""
        self.known: Mapping[str, Lane] = {}
        """The same lanes, whether or not the next message needs a hook."""
        self.unserved: Callable[[Message, Sequence[str]], None] = lambda message, nearest: None
        """Called with a request that has no recipient, and the most similar topics that have subscribers."""
        broker.on_lost(self._lost)

    # Building

    def message(self, topic: str, payload: object, fields: Fields) -> Message:
        now_ns = self.time_ns()
        stamped: Fields = {"sender": self._name, "id": self.ids.next(now_ns), **fields}
        if payload.__class__ is not bytes and "content_type" not in fields:
            stamped["content_type"] = self.content_type
        if unknown := fields.keys() - KNOWN_FIELDS:
            raise UsageError(_unknown_field(min(unknown)))
        message = Message(topic=topic, payload=payload, timestamp_ns=now_ns, **stamped)
        self._broker.check_written(topic)
        return self._weighed(message)

    def stamped(self, message: Message) -> Message:
        """A copy of a message built by hand, with missing fields added: id, time, sender. Raises MessageTooLarge."""
        now_ns = self.time_ns()
        return self._weighed(
            msgspec.structs.replace(
                message,
                id=message.id or self.ids.next(now_ns),
                timestamp_ns=message.timestamp_ns or now_ns,
                sender=message.sender or self._name,
                seq=0,
            )
        )

    def compose(
        self,
        topic: str,
        payload: object,
        type: MessageType,
        recipient: str | None,
        request_id: str,
        correlation_id: str | None,
        reply_to: str | None,
        lane: Lane | None = None,
    ) -> Message:
        """Like `message`, for a request or its answer: in a fifth of the time.

        A message with a lane must be put into it next. It already has its number if it is small and the lane is in this
        process.
        """
        body: Any
        body, content_type = (payload, RAW) if payload.__class__ is bytes else encode(payload, self.content_type)
        now_ns = self.time_ns()
        make: Callable[..., Message] = numbered
        if lane is None:
            make, topic, seq = unchecked, validate_topic(topic), 0
        elif lane.plain is not None and len(body) <= self.small:
            seq = lane.reserve(1)
        else:
            make, seq = unchecked, 0
        message = make(
            self.ids.next(now_ns),
            topic,
            body,
            now_ns,
            seq,
            self._name,
            content_type,
            type,
            recipient,
            NORMAL,
            None,
            request_id,
            correlation_id,
            reply_to,
        )
        return message if len(body) <= self.small else self._weighed(message)

    def alike(self, lane: Any, topic: str, values: Sequence[object]) -> tuple[list[str], list[Message]] | None:
        """Build plain messages of one format for a lane, and their ids; None if a payload is not small, or the formats
        differ.

        The list of messages is empty if the lane has taken them as a run.
        """
        kind = RAW
        bodies: Sequence[Any] = values
        if set(map(type, values)) != {bytes}:
            encoded = [encode(value, self.content_type) for value in values]
            if len({kind for _, kind in encoded}) != 1:
                return None
            kind = encoded[0][1]
            bodies = [body for body, _ in encoded]
        if max(map(len, bodies)) > self.small:
            return None
        now_ns = self.time_ns()
        count = len(bodies)
        ids = self.ids.take(count, now_ns)
        if lane.immediate and count > 1 and self._put_run(lane, kind, ids, bodies, now_ns):
            return ids, []
        first = lane.reserve(count)
        columns = ids, repeat(topic), bodies, repeat(now_ns)
        rest = repeat(self._name), repeat(kind)
        if first:
            return ids, list(map(numbered, *columns, range(first, first + count), *rest))
        return ids, unchecked_many(*columns, repeat(0), *rest)

    def _put_run(self, lane: Any, kind: str, ids: list[str], bodies: Sequence[bytes], now_ns: int) -> bool:
        """Append messages to the current run of the bus, or to a new one; False if there can be none."""
        run = self._traffic.run
        if run.lane is not lane or run.content_type != kind or len(run) + len(ids) > run.room:
            run = lane.begin_run(self._name, kind, several=True)
            if run is None:
                return False
            self._traffic.begin_run(run)
        run.extend(ids, bodies, now_ns)
        lane.send_run(full=True)
        return True

    def _weighed(self, message: Message) -> Message:
        if len(message.payload) > self.max_bytes:
            error = MessageTooLarge(len(message.payload), self.max_bytes)
            self._traffic.refuse(message, error)
            raise error
        return message

    # Publishing

    def open(self) -> TopicLanes:
        head = self._hooks.head
        self.known = {} if self._hooks and head is None else self._broker.lanes
        self.lanes = self.known if head is None else SampledLanes(self.known, head)
        return self.lanes

    def close(self) -> None:
        """From now on every message takes the slow path, which checks whether the bus is open."""
        self.lanes = self.known = {}

    def lane_of_answer(self, topic: str, trace: str | None) -> Lane | None:
        """The lane for an answer; None if it is not known, or if the answer must pass the hooks.

        An answer is sampled if its request was.
        """
        return None if trace is not None and self._hooks else self.known.get(topic)

    async def publish(self, message: Message, lane: Lane | None = None) -> str:
        """Publish one message that no other code refers to; return its id. With a lane from `lanes`, no hook runs."""
        self._life.check_open()
        if self._hooks and lane is None:
            await self.send((message,))
            return message.id
        if message.ttl_s is not None and (error := self._expired(message)) is not None:
            raise error
        topic = message.topic
        await self.put(lane or self.known.get(topic) or self._broker.lane(topic), (message,), alike=False)
        return message.id

    def publish_now(self, message: Message, lane: Lane | None) -> Awaitable[object] | None:
        """Like `publish`, but immediately if possible. Returns an awaitable if there is more to do, else None."""
        if (
            lane is None
            or not (lane.immediate or lane.plain is not None)
            or message.ttl_s is not None
            or len(message.payload) > self.small
            or self._life.state is not OPEN
        ):
            return self.publish(message, lane)
        # Only `compose` assigns a number beforehand.
        alike = message.seq != 0
        try:
            waiting = lane.put(message, alike=alike)
        except MessageTooLarge:
            # Too large for a frame. Nothing was sent yet: the slow path counts the refusal.
            return self.publish(message, lane)
        if waiting is not DONE:
            return self.put(lane, (message,), alike=alike, waiting=waiting)
        self._traffic.accept_one(message, routed=lane.has_subscribers)
        if lane.unserved and message.type in ASKING:
            self.unserved(message, self._broker.nearest(message.topic))
        return None

    async def publish_sampled(
        self,
        made: tuple[str, str, Any, int, str],
        lane: Any,
        head: HeadSampling,
        publish_now: Callable[[Message, Lane], Awaitable[object] | None],
    ) -> str:
        """Publish a message that starts a trace, without additional fields: with its span, and otherwise as without
        hooks. `made` are its id, topic, payload, time and content type.
        """
        message_id, topic, body, now_ns, _ = made
        span = head.start()
        about = topic, message_id, len(body)
        try:
            message = self._plain(lane, made)
            seal(message, "trace", span[1])
            if (waiting := publish_now(message, lane)) is not None:
                await waiting
        except BaseException as error:
            head.spans.write(span, about, now_ns, self.time_ns(), error)
            raise
        head.spans.write(span, about, now_ns, self.time_ns())
        return message_id

    async def publish_unsampled(
        self,
        topic: str,
        payload: object,
        lane: Any,
        publish_now: Callable[[Message, Lane], Awaitable[object] | None],
    ) -> str:
        """Publish a message while one that is not sampled is handled: as without hooks."""
        body: Any
        body, content_type = (payload, RAW) if payload.__class__ is bytes else encode(payload, self.content_type)
        if len(body) > self.small:
            return await self.publish(self.message(topic, body, {"content_type": content_type}), lane)
        now_ns = self.time_ns()
        message_id = self.ids.next(now_ns)
        if (run := self._run_for(lane, content_type)) is not None:
            run.extend((message_id,), (body,), now_ns)
        elif (
            waiting := publish_now(self._plain(lane, (message_id, topic, body, now_ns, content_type)), lane)
        ) is not None:
            await waiting
        return message_id

    def _plain(self, lane: Any, made: tuple[str, str, Any, int, str]) -> Message:
        message_id, topic, body, now_ns, content_type = made
        make, seq = (unchecked, 0) if lane.plain is None else (numbered, lane.reserve(1))
        return make(message_id, topic, body, now_ns, seq, self._name, content_type)

    def _run_for(self, lane: Any, content_type: str) -> PlainRun | None:
        """The current run of the bus, or a new one; None if there can be none, as for the first message of an
        iteration.
        """
        run = self._traffic.run
        if run.lane is lane and run.content_type == content_type and len(run) < run.room:
            return run
        if lane.plain is not None or not lane.immediate or lane.outbox.idle:
            return None
        begun: PlainRun | None = lane.begin_run(self._name, content_type)
        if begun is not None:
            self._traffic.begin_run(begun)
        return begun

    async def send(self, batch: Batch, lane: Lane | None = None) -> None:
        """Publish messages of one topic, in order. No other code refers to them. With a lane from `lanes`, no hook
        runs.
        """
        self._life.check_open()
        if not self._hooks or lane is not None:
            await self._accept(batch)
            return
        refused, error = await self._hooks.run(batch, self._accept)
        for message, why in refused:
            self._traffic.refuse(message, why)
        if error is not None:
            raise error

    async def post_many(self, messages: Sequence[Message], send: Callable[[list[Message]], Awaitable[None]]) -> None:
        """Like `send`, for messages built by hand."""
        stamped: list[Message] = []
        refused: list[tuple[Message, Exception]] = []
        for message in messages:
            try:
                stamped.append(self.stamped(message))
            except MessageTooLarge as error:
                refused.append((message, error))
        if stamped:
            try:
                await send(stamped)
            except PartlyRefused as error:
                refused += error.refused
        if refused:
            raise PartlyRefused(refused, len(messages))

    async def _accept(self, batch: Batch) -> None:
        """Put messages that have passed the hooks into their lanes, in runs of one kind."""
        failures: Failures = []
        for _, same in groupby(self._fresh(batch, failures), key=_kind):
            run = list(same)
            lane = self._broker.lane(run[0].topic)
            if self._hooks and (lane.stored or not (self._hooks.numbers and run[0].seq)):
                # Copies, because the hooks may still refer to the originals.
                run = without_numbers(run)
            try:
                await self.put(lane, run, alike=False)
            except PartlyRefused as error:
                failures.extend(error.refused)
            except Refused as error:
                failures.append((run[0], error))
        if failures:
            raise failures[0][1] if len(batch) == 1 else PartlyRefused(failures, len(batch))

    def _fresh(self, batch: Batch, failures: Failures) -> list[Message]:
        fresh: list[Message] = []
        for message in batch:
            if message.ttl_s is not None and (error := self._expired(message)) is not None:
                failures.append((message, error))
            else:
                fresh.append(message)
        return fresh

    def _expired(self, message: Message) -> MessageExpired | None:
        expires_ns = message.expires_ns
        if expires_ns is None or (late_ns := self.time_ns() - expires_ns) < 0:
            return None
        error = MessageExpired(message.id, late_ns / 1e9)
        self._traffic.refuse(message, error)
        return error

    async def put(self, lane: Lane, batch: Batch, *, alike: bool, waiting: Awaitable[Failures] | None = None) -> None:
        """Put messages into their lane, and count the results: the last step of publishing.

        `waiting` is the result of the lane, if the messages were already put into it.
        """
        try:
            if waiting is None:
                if len(batch) > 1:
                    waiting = lane.put_many(batch, alike=alike)
                elif batch[0].type is REQUEST and self._hooks:
                    waiting = self._put_request(lane, batch[0], alike)
                else:
                    waiting = lane.put(batch[0], alike=alike)
            failures = [] if waiting is DONE else await waiting
        except asyncio.CancelledError as error:
            if not lane.stored:
                self._count(batch, [(message, error) for message in batch], routed=lane.has_subscribers, alike=alike)
            # Messages on their way to a store may still be stored: they are not counted as failed.
            raise
        except PartlyRefused as error:
            self._refuse(error.refused)
            raise
        except (Refused, HubError, MessageTooLarge) as error:
            self._refuse([(message, error) for message in batch])
            if len(batch) == 1 or not isinstance(error, Refused):
                raise
            raise PartlyRefused([(message, error) for message in batch], len(batch)) from error
        if not failures:
            self._traffic.accept(batch, routed=lane.has_subscribers, alike=alike)
            if batch[0].type in ASKING and lane.unserved:
                for message in batch:
                    self.unserved(message, self._broker.nearest(message.topic))
            return
        self._count(batch, failures, routed=lane.has_subscribers, alike=alike)
        raise failures[0][1] if len(batch) == 1 else PartlyRefused(failures, len(batch))

    def _put_request(self, lane: Lane, message: Message, alike: bool) -> Awaitable[Failures]:
        """Put a request into its lane.

        Idle handlers run after its hooks, or in the next iteration if the hooks wait.
        """
        if not self._eager.may_run():
            return lane.put(message, alike=alike)
        self._eager.collecting = EVERYONE
        try:
            return lane.put(message, alike=alike)
        finally:
            self._eager.collecting = 0
            if self._eager.ready:
                asyncio.get_running_loop().call_soon(self._eager.wake_all)

    def _count(
        self, batch: Batch, failures: Sequence[tuple[Message, BaseException]], *, routed: bool, alike: bool
    ) -> None:
        """Count accepted, refused and failed messages. A message that failed without a number was never offered: it was
        not accepted.
        """
        refused = [(message, why) for message, why in failures if not message.seq]
        out = {id(message) for message, _ in refused}
        self._traffic.accept([message for message in batch if id(message) not in out], routed=routed, alike=alike)
        self._refuse(refused)
        for message, why in failures:
            if message.seq and isinstance(why, Refused):
                self._traffic.fail(why)

    def _refuse(self, refused: Sequence[tuple[Message, BaseException]]) -> None:
        for message, why in refused:
            self._traffic.refuse(message, why)

    # Results that arrive later

    def settled(self, messages: Batch, failures: Failures) -> None:
        """Called when messages of a pipeline are stored and delivered.

        `failures` are those that a subscriber refused.
        """
        lane = self.known.get(messages[0].topic)
        routed = lane is None or lane.has_subscribers
        if not failures and max([len(message.payload) for message in messages]) <= self.small:
            # All messages were built by this bus.
            self._traffic.accept(messages, routed=routed, alike=True)
        else:
            self._count(messages, failures, routed=routed, alike=False)

    def settled_run(self, run: PlainRun) -> None:
        """As `settled`, for a run of a pipeline."""
        if max(map(len, run.payloads)) > self.small:
            self.settled(run.messages, [])
            return
        lane = self.known.get(run.topic)
        self._traffic.accept_run(run, routed=lane is None or lane.has_subscribers)

    def failed(self, messages: Batch, error: Refused) -> None:
        """Called when messages of a pipeline could not be stored. They were not delivered."""
        self._refuse([(message, error) for message in messages])

    def _lost(self, messages: Batch, error: Exception) -> None:
        """Record messages that did not arrive, and whose publisher did not wait."""
        for message in messages:
            # Other buses may publish through the same broker.
            if message.sender == self._name or self._traffic.history.find(message.id) is message:
                self._traffic.refuse(message, error)


def _kind(message: Message) -> tuple[str, int, float | None, bool]:
    return message.topic, message.priority, message.ttl_s, message.requires_ack
