"""The bus: the interface that programs use. It is a facade over its parts.

BusPublisher publishes messages, Requester keeps the requests that wait for answers, Handlers run functions, Traffic
counts, DeadLetterNotices publishes notices of dead letters, Lifecycle has the state, Controller executes the commands
of other buses, and Closing ends the bus. The code that every message passes is in this file, for speed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, Unpack, overload

from trunkline import codec
from trunkline.brokers.broker import Broker, Feature, Lane
from trunkline.bus import replay
from trunkline.bus.channels import Consumption, Production
from trunkline.bus.closing import Closing, Unfinished
from trunkline.bus.control import BusCommand, Controller, Health
from trunkline.bus.dispatcher import Handler
from trunkline.bus.explain import Explanation, explain
from trunkline.bus.handlers import check_pattern_given
from trunkline.bus.handling import HandlerOptions, Handlers
from trunkline.bus.lifecycle import BusState, Lifecycle
from trunkline.bus.notebook_html import html_of
from trunkline.bus.notices import DeadLetterNotices
from trunkline.bus.observe import Lazy, Stats, Traffic
from trunkline.bus.pipeline import Pipeline
from trunkline.bus.publisher import BusPublisher
from trunkline.bus.replay import Replayed
from trunkline.bus.requester import Requester, expects_ack, read
from trunkline.bus.router import Router
from trunkline.bus.subscription import Subscription
from trunkline.bus.threads import ThreadDoor
from trunkline.delivery.dead_letters import Cause, DeadLetters
from trunkline.delivery.eager import EVERYONE, MAX_DEPTH, MAX_IN_A_ROW, TOLD
from trunkline.delivery.fates import Account
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.options import Delivery, DeliveryOptions
from trunkline.delivery.plain_run import NO_RUN, PlainRun
from trunkline.delivery.requests import OrphanBox
from trunkline.delivery.route import Unsettled, offer
from trunkline.errors import (
    BusClosed,
    InvalidSettings,
    PartlyRefused,
    Refused,
    RequestTimeout,
    UsageError,
)
from trunkline.hooks.head import HeadSampling
from trunkline.hooks.hook import Attachment, Hook, HookChain, HookFunction, Listener
from trunkline.memory.metrics import MemoryEnds
from trunkline.message import Fields, Message, MessageType
from trunkline.moment import Moment
from trunkline.settings import Settings, build
from trunkline.topic import BROADCAST, CONTROL_PREFIX, EVERYTHING, REPLIES, endpoint
from trunkline.unchecked import draft, numbered, seal

log = logging.getLogger("trunkline.bus")

REQUEST = MessageType.REQUEST
_LINKING = (MessageType.SUBSCRIBE, MessageType.UNSUBSCRIBE)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
RAW = codec.RAW
encode = codec.encode
WATCH = 63
"""A run is started when more than this many consecutive messages went to one topic and wait in its inbox.

Fewer messages are built faster one by one. Must be one less than a power of two.
"""
DECIDE_S = 1.0
"""The spans of a run's sampled messages are written after this time, even if no subscriber has read from the run."""
MAX_NAME_BYTES = 1000
"""The limit for the name of a bus, which is the sender of every message."""


class Bus:
    """Publish, send, request, subscribe, handle. Use it in one event loop; other threads use `from_thread`."""

    def __init__(
        self,
        broker: Broker,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        hooks: Iterable[Hook | HookFunction] = (),
        owns_broker: bool = False,
    ) -> None:
        self.name = name = name or broker.world.program()
        if len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidSettings(f"the bus name has {len(name.encode()):,} bytes, limit {MAX_NAME_BYTES:,}")
        self.broker = broker
        self.settings = settings = settings or broker.settings
        self.hooks = HookChain(hooks)
        """The hooks, in the order in which they run."""
        self.memory_ends = MemoryEnds()
        """The ends of channels in shared memory that were opened with this bus."""
        self._life = Lifecycle(name, broker.world.time_ns)
        self._traffic = traffic = Traffic(name, settings.history, broker)
        self._publisher = BusPublisher(broker, name, settings, self.hooks, traffic, self._life)
        self._requester = Requester(broker, name, settings, self._publisher, self._life)
        self.answer_now = self._requester.answer_now
        """Sends answers of actors, as for handlers."""
        self._handlers = Handlers(broker, settings, self.hooks, self._requester, self._life, self._acknowledged)
        self.router = Router(
            self._handlers.start_named,
            self._handlers.tap_all,
            settings.backpressure,
            self._publisher.stamped,
            broker.world.time_ns(),
        )
        self._notices = DeadLetterNotices(broker, name, self.hooks, self._life, self.post, self._requester)
        self._closing = Closing(broker, owns_broker, self._life, self._handlers, self._notices)
        self._controller = Controller(self, self._publisher, self._requester, self._notices.run, self._begin_to_close)
        self._door: ThreadDoor | None = None
        # Bound once, for `publish`.
        self._lanes: Any = {}
        """The same as `BusPublisher.lanes`."""
        self._known: Any = {}
        """The same as `BusPublisher.known`."""
        self._head: HeadSampling | None = None
        """Selects the messages that need the hook, if only a share of them does."""
        self._current: Callable[[None], Mapping[str, object] | None] | None = None
        """Returns the current context of OpenTelemetry, if only a share of the messages needs the hook."""
        self._deciding: asyncio.TimerHandle | None = None
        """The timer after which `_decide` selects the sampled messages of an open run."""
        self._time_ns = broker.world.time_ns
        self._ids = self._publisher.ids
        self._sequence = broker.sequence
        self._remember = traffic.history.add
        self._run_lane: Any = None
        """The lane on which the next plain message starts a run, because several went there in a row."""
        self._watched: tuple[int, int, Any] = (0, 0, None)
        """What `_watch` saw last: how many messages a lane had, the last number, and the lane."""
        self._small = self._publisher.small
        self._listeners = broker.served.listeners
        self._eager = broker.served.eager
        broker.finders.append(traffic.history.find)
        self.hooks.attach(Attachment(name, broker, _loop_time, self.on_handled, self._record_in))

    # Publishing

    async def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Publish to all subscribers whose pattern matches; return the message's id.

        In memory, the message is in the inboxes when this returns. On a durable topic it is also on disk; if the call
        is cancelled before that, the message may or may not have been published. Order is kept per publisher, topic and
        priority. The call waits while a full inbox has the policy `block`. It raises Refused if a hook, a limit or a
        policy refuses the message. If it is cancelled while it waits, the message is dropped for the subscribers whose
        inboxes were full.
        """
        run = self._traffic.run
        current = self._current
        if topic == run.topic and run.room and not fields and (current is None or current(None) is None):
            # The lane is valid: otherwise the run would be closed.
            lane: Any = run.lane
        else:
            lane = self._known.get(topic)
            if lane is None or fields:
                publisher = self._publisher
                if "trace" in fields and self.hooks:
                    lane = None
                elif self._head is not None:
                    lane = self._lanes.get(topic)
                message = publisher.message(topic, payload, fields)
                if "type" in fields and message.type in _LINKING:
                    return self._take_link(message)
                if lane is None or lane.plain is None:
                    return await publisher.publish(message, lane)
                if (waiting := self._publish_now(message, lane)) is not None:
                    await waiting
                return message.id
            if current is not None and (context := current(None)) is not None and context:
                if self._head is None or context is not self._head.unsampled:
                    return await self._publisher.publish(self._publisher.message(topic, payload, fields))
                return await self._publisher.publish_unsampled(topic, payload, lane, self._publish_now)
        # The fast path for a message without additional fields: `BusPublisher.put`, `Route.put` and `Traffic.accept`,
        # inlined. tests/bus/test_twin.py checks that both paths give the same result. The benchmarks measure this code.
        if type(payload) is bytes:
            content_type = RAW
        else:
            payload, content_type = encode(payload, self.settings.content_type)
            # A function that encodes the payload may have read the counters, which ends the run.
            run = self._traffic.run
        if len(payload) > self._small:
            return await self._publisher.publish(
                self._publisher.message(topic, payload, {"content_type": content_type}), self._lanes.get(topic)
            )
        # Functions in attributes are called from a local name: otherwise CPython looks for a method first.
        time_ns = self._time_ns
        now_ns = time_ns()
        if run.lane is lane and run.content_type == content_type:
            payloads = run.payloads
            at = len(payloads)
            if at < run.reserved and now_ns <= run.ends_ns:
                payloads.append(payload)
                run.times.append(now_ns)
                return run.ids[at]
            if at < run.room:
                return self._append(run, payload, now_ns)
        published = self._publish_alone(lane, topic, payload, now_ns, content_type)
        return published if published.__class__ is str else await published  # type: ignore[misc]  # else an awaitable

    def _publish_alone(
        self, lane: Any, topic: str, payload: bytes, now_ns: int, content_type: str
    ) -> str | Awaitable[str]:
        """The rest of `publish` for a message that does not fit the current run: it starts another, or is built.

        Not a part of `publish` itself: its local variables would make that coroutine too large for the fast allocator.
        """
        traffic = self._traffic
        run = traffic.run
        if run is not NO_RUN:
            traffic.end_run()
        inboxes = lane.plain
        run_lane = self._run_lane
        if run_lane is not None:
            if run_lane is not lane:
                self._run_lane = None
            elif (begun := self._begin_run(lane, run, content_type)) is not None:
                return self._append(begun, payload, now_ns)
        ids = self._ids
        try:
            message_id: str = next(ids.block) if now_ns <= ids.ends_ns else self._open_ids(now_ns)
        except StopIteration:
            message_id = self._open_ids(now_ns)
        head = self._head
        if head is not None:
            if left := head.left:
                head.left = left - 1
            else:
                made = message_id, topic, payload, now_ns, content_type
                return self._publisher.publish_sampled(made, lane, head, self._publish_now)
        remember = self._remember
        if inboxes is None:
            # The second consecutive message on another lane starts a run.
            self._run_lane = lane
            message = draft(message_id, topic, payload, now_ns, 0, self.name, content_type)
            seal(message, "__class__", Message)
            if not lane.immediate or not lane.put_now(message):
                return self._put(lane, message)
            traffic.total += 1
            remember(message)
            if not lane.has_subscribers:
                traffic.unrouted += 1
            return message_id
        sequence = self._sequence
        if sequence.unnumbered is not None:
            sequence.unnumbered.close()
        sequence.number = seq = sequence.number + 1
        message = numbered(message_id, topic, payload, now_ns, seq, self.name, content_type)
        lane.published += 1
        traffic.total += 1
        remember(message)
        if not seq & WATCH:
            self._watch(lane)
        inbox = lane.only_inbox
        if inbox is not None and len(queue := inbox.queue) < inbox.room:
            inbox.books.accepted += 1
            queue.append(message)
            if inbox.sleepers:
                if inbox.told:
                    self._eager.ready.append(inbox)
                    self._eager.run_once()
                else:
                    inbox.wake()
            return message_id
        full: list[Inbox] | None = None
        told = False
        for inbox in inboxes:
            queue = inbox.queue
            if len(queue) < inbox.room:
                inbox.books.accepted += 1
                queue.append(message)
                if inbox.sleepers:
                    if inbox.told:
                        told = True
                        self._eager.ready.append(inbox)
                    else:
                        inbox.wake()
            elif full is None:
                full = [inbox]
            else:
                full.append(inbox)
        if full is not None or not lane.all_plain:
            if not lane.has_subscribers:
                traffic.unrouted += 1
            unsettled = offer(message, (*(full or ()), *lane.special))
            if unsettled is not None:
                self._eager.wake_all()
                return self._settle(message_id, unsettled)
        if told:
            self._eager.run_once()
        return message_id

    async def _put(self, lane: Lane, message: Message) -> str:
        await self._publisher.put(lane, (message,), alike=True)
        return message.id

    async def _settle(self, message_id: str, unsettled: Unsettled) -> str:
        try:
            await unsettled.settle(self.broker.settings.backpressure)
        except Refused as error:
            self._traffic.fail(error)
            raise
        return message_id

    def _begin_run(self, lane: Any, last: PlainRun, content_type: str) -> PlainRun | None:
        """A new run for this message and the next ones on its lane; None if no run is possible now.

        `last` is the previous run.
        """
        inboxes = lane.plain
        if inboxes is None:
            if not lane.immediate or lane.outbox.idle:
                return None
        elif last is not NO_RUN and not last.room and len(last) < WATCH:
            # The counters are read repeatedly, which ends the run each time: a short run costs more than it saves.
            self._run_lane = None
            return None
        begun: PlainRun | None = lane.begin_run(self.name, content_type)
        if begun is not None:
            self._traffic.begin_run(begun)
            if inboxes is not None and self._head is not None and self._deciding is None:
                self._decide_later()
        elif inboxes and inboxes[0].room and last is NO_RUN:
            # The subscriber has no backlog. After a run it may just have emptied its inbox, so the next message
            # decides.
            self._run_lane = None
        return begun

    def _decide_later(self) -> None:
        """Set the timer for the sampling decision: nothing else triggers it until a subscriber reads from the run."""
        self._deciding = asyncio.get_running_loop().call_later(DECIDE_S, self._decide)

    def _decide(self) -> None:
        self._deciding = None
        run = self._traffic.run
        if self._head is not None and run.room:
            self._head.decide(run)
            self._decide_later()

    def _watch(self, lane: Any) -> None:
        """Called periodically: enables runs on a lane that got all recent messages and has a backlog."""
        number = self._sequence.number
        in_a_row = lane.published - self._watched[0] == number - self._watched[1] and lane is self._watched[2]
        if in_a_row and lane.all_plain and len(lane.plain[0].queue) > WATCH:
            self._run_lane = lane
        self._watched = lane.published, number, lane

    def _append(self, run: PlainRun, payload: bytes, now_ns: int) -> str:
        """Append a message to a run that may have no reserved ids. Checks for a foreign event loop, too."""
        self._life.check_loop()
        return run.append(self._ids, payload, now_ns)

    def _open_ids(self, now_ns: int) -> str:
        """The first id of the next block. The check for a foreign event loop is done here, once per block."""
        self._life.check_loop()
        return self._ids.open(now_ns)

    def _publish_now(self, message: Message, lane: Lane | None) -> Awaitable[object] | None:
        """Publish in this process. An idle actor runs within this call.

        Returns an awaitable if there is more to do, else None.
        """
        eager = self._eager
        eager.collecting = TOLD
        try:
            waiting = self._publisher.publish_now(message, lane)
        finally:
            eager.collecting = 0
        if eager.ready:
            if waiting is None:
                eager.run_once()
            else:
                eager.wake_all()
        return waiting

    async def publish_many(self, topic: str, payloads: Iterable[object], **fields: Unpack[Fields]) -> list[str]:
        """Publish several payloads on one topic, in order, as one batch; return their ids.

        Raises PartlyRefused, which has the refused messages, if some were refused.
        """
        values = payloads if isinstance(payloads, (list, tuple)) else list(payloads)
        publisher = self._publisher
        lane = self._lanes.get(topic)
        if lane is not None and values and not fields and (made := publisher.alike(lane, topic, values)) is not None:
            ids, batch = made
            if batch:
                await publisher.put(lane, batch, alike=True)
            return ids
        batch = [publisher.message(topic, value, fields) for value in values]
        if batch:
            await self._send(batch, None if "trace" in fields else lane)
        return [message.id for message in batch]

    def pipeline(self, in_flight: int = 1000) -> Pipeline:
        """Publish many without waiting for each message: `async with bus.pipeline() as pipe: await pipe.publish(…)`."""
        return Pipeline(self.publish, self._publisher, self.name, in_flight, self.broker.release_gone)

    async def post(self, message: Message) -> str:
        """Publish a message built by hand, by its type; return its id.

        A SUBSCRIBE message links its topic to the endpoint of its sender, and UNSUBSCRIBE removes the link.
        """
        message = self._publisher.stamped(message)
        return self._take_link(message) if message.type in _LINKING else await self._publisher.publish(message)

    def _take_link(self, message: Message) -> str:
        """Apply a SUBSCRIBE or UNSUBSCRIBE message."""
        self._life.check_open()
        change = self.link if message.type is MessageType.SUBSCRIBE else self.unlink
        change(message.topic, message.sender)
        self._traffic.accept((message,), routed=True, alike=False)
        return message.id

    async def _send(self, batch: list[Message], lane: Lane | None = None) -> None:
        """Publish messages of one topic, in order. Some may be addressed to the bus itself."""
        if not any(message.type in _LINKING for message in batch):
            await self._publisher.send(batch, lane)
            return
        refused: list[tuple[Message, Exception]] = []
        for message in batch:
            try:
                if message.type in _LINKING:
                    self._take_link(message)
                else:
                    await self._publisher.publish(message, lane)
            except Refused as error:
                refused.append((message, error))
        if refused:
            raise PartlyRefused(refused, len(batch))

    async def post_many(self, messages: Sequence[Message]) -> None:
        """Publish messages built by hand, all of one topic, priority and ttl, in order, as one batch.

        Raises PartlyRefused, which has the refused messages, if some were refused.
        """
        await self._publisher.post_many(messages, self._send)

    def message(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Message:
        """A message with id, time and sender, not yet published: pass it to `post`. Raises MessageTooLarge."""
        return self._publisher.message(topic, payload, fields)

    async def send(self, to: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Send to the endpoint `to`; return the message's id."""
        direct: Fields = {"type": MessageType.DIRECT, "recipient": to, **fields}
        message = self._publisher.message(endpoint(to), payload, direct)
        lane = None if "trace" in fields and self.hooks else self._lanes.get(message.topic)
        if (waiting := self._publish_now(message, lane)) is not None:
            await waiting
        return message.id

    async def broadcast(self, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Send to all endpoints; return the message's id."""
        return await self.publish(BROADCAST, payload, **fields)

    def produce(
        self,
        channel: str,
        producer_id: str,
        *,
        schema: Any = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Production:
        """`async with bus.produce("orders", "shop-1", schema=Order) as producer`: on a channel of the hub.

        Inside, the hub's directory lists the producer, and `await producer.publish(order)` publishes on the channel's
        topic. A new schema is registered; the hub refuses a schema that differs from that of the channel.
        """
        directory = self.broker.require_directory()
        about = {**(metadata or {}), "producer_id": producer_id}
        return Production(
            self.publish,
            lambda: directory.attach_producer(channel, schema=schema, metadata=about),
            lambda: directory.unregister_producer(channel),
        )

    async def flush(self) -> None:
        """Return when the broker has received everything that was published so far."""
        await self.broker.flush()

    def link(self, pattern: str, name: str) -> bool:
        """Also deliver messages that match `pattern` to the endpoint `name`; False if the link already exists."""
        return self.broker.link(pattern, endpoint(name))

    def unlink(self, pattern: str, name: str) -> bool:
        """Remove a link; False if there is none."""
        return self.broker.unlink(pattern, endpoint(name))

    def from_thread(self) -> ThreadDoor:
        """An object with which other threads publish on this bus. Call this in the event loop."""
        if self._door is None:
            self._door = ThreadDoor(self.name, self.publish, self.settings.backpressure)
        return self._door

    # Asking

    @overload
    async def request(
        self,
        topic: str = ...,
        payload: object = ...,
        *,
        to: str | None = ...,
        timeout_s: float | None = ...,
        **fields: Unpack[Fields],
    ) -> Any: ...
    @overload
    async def request(
        self,
        topic: str = ...,
        payload: object = ...,
        *,
        to: str | None = ...,
        reply: type[T],
        timeout_s: float | None = ...,
        **fields: Unpack[Fields],
    ) -> T: ...
    async def request(
        self,
        topic: str = "",
        payload: object = b"",
        *,
        to: str | None = None,
        reply: Any = Any,
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> Any:
        """Send a request and wait for the first answer, decoded as `reply` (a type, or Message for the answer itself).

        Pass a topic, or an endpoint: `request(to="agent2", payload=…)` asks the endpoint that `send("agent2", …)`
        reaches. Raises NoResponders immediately if there is neither a subscriber nor, on a stored topic, a durable
        subscription; RequestTimeout (after 30 s by default); RequestFailed if the responder fails; InvalidPayload if
        the answer does not match `reply`. The request is always removed, also if the call is cancelled.
        """
        if to is not None:
            if topic:
                raise UsageError(f"pass either a topic ({topic!r}) or to={to!r}, not both")
            topic, fields["recipient"] = endpoint(to), to
        lane = None if "trace" in fields and self.hooks else self._lanes.get(topic)
        if lane is None and self.hooks.asks:
            with self.hooks.asking():
                return await self._ask(topic, payload, reply, timeout_s, fields, None)
        return await self._ask(topic, payload, reply, timeout_s, fields, lane)

    async def _ask(
        self, topic: str, payload: object, reply: Any, timeout_s: float | None, fields: Fields, lane: Lane | None
    ) -> Any:
        publisher, requester, eager = self._publisher, self._requester, self._eager
        request_id = fields.get("request_id") or self._ids.next(self._time_ns())
        # Registered before it is sent, so that even the fastest answer finds it.
        answer = requester.expect(request_id, topic, timeout_s, timed=False)
        try:
            if fields:
                asked: Fields = {"type": REQUEST, "reply_to": requester.reply_topic, **fields}
                asked["request_id"] = request_id
                message = publisher.message(topic, payload, asked)
            else:
                self.broker.check_written(topic)
                message = publisher.compose(
                    topic, payload, REQUEST, None, request_id, None, requester.reply_topic, lane
                )
            # An idle handler in this process runs inside `run`: often the answer is available afterwards.
            if eager.enabled and eager.depth < MAX_DEPTH and sys.exception() is None:
                eager.collecting = EVERYONE
            try:
                waiting = publisher.publish_now(message, lane)
            finally:
                eager.collecting = 0
            if waiting is not None:
                requester.time(answer)
                eager.wake_all()
                await waiting
            if eager.ready:
                eager.run()
            got = answer.got
            if got is None:
                requester.time(answer)
                try:
                    got = await requester.wait(answer)
                except RequestTimeout:
                    self._handlers.handled(message, False)
                    raise
            else:
                eager.left -= 1
                if not eager.left:
                    eager.left = MAX_IN_A_ROW
                    await asyncio.sleep(0)
            if self._listeners:
                self.broker.served.answered(message, got.type is not MessageType.ERROR)
        except BaseException:
            # Refused, timed out, cancelled or closed. After an answer the request is already closed.
            self._requester.close(request_id)
            raise
        return read(self.hooks.open(got) if self.hooks.opens else got, reply, self.settings.max_message_bytes)

    async def try_request(self, topic: str = "", payload: object = b"", **options: Any) -> Any:
        """Like `request`, but returns None if no answer arrives in time, or if the bus is closed meanwhile."""
        try:
            return await self.request(topic, payload, **options)
        except (RequestTimeout, BusClosed):
            return None

    async def wait_reply(self, request_id: str, *, reply: Any = Any, timeout_s: float | None = None) -> Any:
        """Wait for the answer to a request that was sent by hand; an answer that has already arrived is claimed."""
        answer = self._requester.expect(request_id, REPLIES, timeout_s)
        try:
            got = await self._requester.wait(answer)
        except BaseException:
            self._requester.close(request_id)
            raise
        return read(self.hooks.open(got), reply, self.settings.max_message_bytes)

    def respond(self, request: Message, value: object) -> Awaitable[str]:
        """Answer a request. Handlers need not call it: their return value is the answer."""
        return self._requester.answer(request, MessageType.RESPONSE, value)

    def respond_error(self, request: Message, error: BaseException) -> Awaitable[str]:
        """Answer a request with an error: the requester gets RequestFailed."""
        return self._requester.answer_error(request, error)

    def acknowledge(self, message: Message) -> Awaitable[str]:
        """Publish an acknowledgement on the `reply_to` of a message. Handlers need not call it."""
        return self._requester.answer(message, MessageType.ACK, b"")

    @property
    def orphans(self) -> OrphanBox:
        """Answers for which no request is waiting (yet).

        They are kept for a while, can be searched, and are claimed when their request is registered.
        """
        return self._requester.orphans

    # Subscribing and handling

    def subscribe(self, pattern: str, **options: Unpack[DeliveryOptions]) -> Subscription:
        """`async with bus.subscribe("orders.>") as messages`: inside the block, every matching publish is received."""
        return self._handlers.subscribe(pattern, build(Delivery, options))

    def consume(
        self,
        channel: str,
        consumer_id: str,
        *,
        schema: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[DeliveryOptions],
    ) -> Consumption:
        """`async with bus.consume("orders", "billing-1", schema=Order) as messages`: from a channel of the hub.

        Options that are not given are taken from the contract of the channel: the overflow policy, the group whose
        members share the messages, and on a durable channel a position that is stored under the consumer's id, or the
        group's name.
        """
        directory = self.broker.require_directory()

        async def attach() -> Subscription:
            terms = await directory.attach(channel, consumer_id, schema=schema, metadata=metadata)
            asked: DeliveryOptions = {"name": consumer_id}
            asked |= terms.options
            asked |= options
            return self.subscribe(terms.pattern, **asked)

        return Consumption(attach, lambda: directory.unregister_consumer(channel, consumer_id))

    def on(self, pattern: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Handle messages that match: `@bus.on("orders.*", retry=Retry(attempts=5))`. The function itself does not
        change."""
        check_pattern_given(pattern)

        def register(function: F) -> F:
            self.handle(pattern, function, **options)
            return function

        return register

    def handle(self, pattern: str, function: Callable[..., Any], **options: Unpack[HandlerOptions]) -> Handler:
        """Run a function on each message that matches; the handler's `aclose` ends it.

        The payload is decoded to the annotated type. The return value is the answer to a request. If the function
        raises, the message is tried again according to `retry` (3 attempts by default), and then becomes a dead letter.
        """
        return self._handlers.handle(pattern, function, options)

    def subscribers(self, topic: str) -> list[str]:
        """The names of the subscribers in this process that would get a message on this topic.

        Subscribers in other processes are not named: see `trunkline status`, or the consumers of a channel. If there
        are none here, but the hub has some, the result is `["somebody elsewhere"]`. This is known only for topics on
        which this process has published.
        """
        return self.broker.subscribers(topic)

    def opened(self, message: Message) -> Message:
        """A message as the handlers of this bus get it, with the changes of hooks undone: decrypted, decompressed.

        For messages from the history, the dead letters or the journal. Raises InvalidPayload if it cannot be opened.
        """
        return self.hooks.open(message)

    def on_handled(self, listener: Listener) -> None:
        """Call `listener(message, well)` each time a handler or an actor of a bus on this broker has handled a message.

        It is also called for each request of these buses: with True if it was answered, with False if it timed out.
        """
        self._handlers.on_handled(listener)

    def _record_in(self, ledger: Ledger) -> None:
        self.broker.served.record_in(ledger)
        self._requester.record_in(ledger)

    # Observation

    def stats(self) -> Stats:
        """Counters of this bus and of the subscribers in this process, not of other processes: see `Stats`.

        Cheap enough to call at any time.
        """
        traffic = self._traffic
        traffic.end_run()
        total = traffic.total
        accounts = self.broker.served.accounts()
        account = sum(accounts.values(), Account())
        return Stats(
            total_messages=total,
            total_failed=traffic.refusals.total + account.dead,
            total_refused=traffic.refusals.total,
            unrouted=traffic.unrouted - self._handlers.found_by_rules,
            pending=account.in_flight,
            dead_letters=len(self.dead_letters),
            orphans=self._requester.kept,
            open_requests=len(self._requester),
            subscribers=len(self.broker.served),
            account=account,
            per_topic=Lazy(self.broker.published_by_topic),
            per_sender=Lazy(lambda: traffic.senders.counts(total)),
            state=self._life.state,
            memory=self.memory_ends.metrics(),
        )

    def _repr_html_(self) -> str:
        """The display in a notebook: the counters, and a link to the page of the hub if one runs on this machine."""
        return html_of(self.name, self.broker.url or self.broker.name, self.stats(), self.accounts())

    def health(self) -> Health:
        """The state of this bus and a few totals: the answer to `ping`, and the payload of its heartbeats."""
        life, served = self._life, self.broker.served
        handlers, total = len(self._handlers), self._traffic.total + len(self._traffic.run)
        at_ns, pending, dead = self._time_ns(), served.pending(), len(served.dead_letters)
        return Health(self.name, life.state, life.since_ns, at_ns, pending, handlers, total, dead)

    def accounts(self) -> Mapping[str, Account]:
        """The counters of each subscriber in this process, of all buses on the same broker.

        Subscribers that have left are summed up under the empty name. For a whole hub, use `trunkline status`.
        """
        return self.broker.served.accounts()

    def pending(self) -> int:
        """The number of deliveries in flight: in inboxes, waiting for room or the next attempt, being handled."""
        return self.broker.served.pending()

    def history(self, limit: int | None = None, pattern: str | None = None) -> list[Message]:
        """The last messages accepted whose topic matches, oldest first."""
        return self._traffic.history.last(limit, pattern)

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages that could not be handled, with cause, attempts and traceback. They can be replayed from here."""
        return self.broker.served.dead_letters

    async def explain(self, message_id: str) -> Explanation:
        """The fate of a message and its reason: one outcome for each subscriber, in any process.

        Through a hub, a client needs a right on the topic; the hub asks the processes that have the message.
        """
        return await explain(self.broker, self._traffic, message_id)

    async def last(self, topic: str, *, before: int | None = None) -> Message | None:
        """The last message accepted on a stored topic, below the number `before` if given; None if none is stored.

        It includes every publish that has returned. Raises TopicNotStored if the journal does not store the topic,
        Unsupported if there is no journal, and JournalDamaged if the message cannot be read.
        """
        message = await self.broker.require_store().last(topic, before)
        return message if message is None else self.hooks.readable(message)

    async def forget_durable(self, name: str) -> bool:
        """Delete the durable subscription of this name or group; False if there is none.

        Its subscribers must be closed first. Retention then no longer keeps messages for it.
        """
        return await self.broker.require_store(Feature.DURABLE).forget(name)

    # Control

    def pause(self) -> Health:
        """Stop handlers from taking messages: they finish their current messages, the others wait in their inboxes.

        Publishing, streams and requests of this bus continue. Closing ends the pause. Raises BusClosed.
        """
        if self._life.state is BusState.OPEN:
            self._life.enter(BusState.PAUSED)
            self._handlers.pause()
        elif self._life.state is not BusState.PAUSED:
            raise BusClosed(self.name)
        return self.health()

    def resume(self) -> Health:
        """End a pause, if there is one."""
        if self._life.state is BusState.PAUSED:
            self._life.enter(BusState.OPEN)
            self._handlers.resume()
        return self.health()

    async def control(self, name: str, command: BusCommand, *, timeout_s: float | None = None) -> Health:
        """Send a command to the bus `name`; return its health after the command.

        Raises RequestTimeout if no bus of that name answers, RequestFailed if it cannot execute the command, and
        NotAllowed if the rules of the hub do not allow this bus to administer the endpoint `name`.
        """
        if command not in set(BusCommand):
            raise UsageError(f"{command!r} is not a command: use {', '.join(BusCommand)}")
        asked: Fields = {"type": MessageType.CONTROL, "recipient": name}
        return await self.request(CONTROL_PREFIX + name, command, reply=Health, timeout_s=timeout_s, **asked)

    async def ping(self, name: str, *, timeout_s: float | None = None) -> Health:
        """The health of the bus `name`; raises RequestTimeout if no bus of that name answers."""
        return await self.control(name, BusCommand.PING, timeout_s=timeout_s)

    # Replay

    async def replay_dead(
        self,
        *,
        message_id: str | None = None,
        subscriber: str | None = None,
        cause: Cause | None = None,
        pattern: str = EVERYTHING,
        per_s: float | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Redeliver dead letters to the subscribers that failed: all, or the selected ones, at most `per_s` a second.

        With a journal, this includes dead letters from before the last restart. A dry run only lists them.
        """
        return await replay.replay_dead(
            self,
            message_id=message_id,
            subscriber=subscriber,
            cause=cause,
            pattern=pattern,
            per_s=per_s,
            dry_run=dry_run,
        )

    async def replay(
        self,
        source: str | Path,
        pattern: str = EVERYTHING,
        *,
        first: int = 1,
        last: int | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        to: str | None = None,
        per_s: float | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Publish messages of a journal again, by sequence number or time, on their old topics or below `to`.

        Each is a new message, with the old id as correlation id and the old sequence number in the header
        `replayed-from`. At most `per_s` are published a second. A dry run only lists them.
        """
        return await replay.replay(
            self, source, pattern, first=first, last=last, since=since, until=until, to=to, per_s=per_s, dry_run=dry_run
        )

    def replay_orphans(self, *, request_id: str | None = None, max_age_s: float = math.inf) -> Replayed:
        """Restore orphans from a journal: a request that is waiting gets its answer, the others can be claimed."""
        return self._requester.replay_orphans(request_id, max_age_s)

    def _acknowledged(self, message: Message) -> None:
        """Called when a message of a stream was acknowledged."""
        if expects_ack(message):
            self._notices.notify(message, lambda: self.acknowledge(message))

    # Life

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a bus cannot be sent to another process: connect there, and in Spark write with the sink,"
            ' df.writeStream.format("trunkline")'
        )

    def __await__(self) -> NoReturn:
        raise UsageError("a bus cannot be awaited: write `async with connect(...) as bus:`")

    def __enter__(self) -> NoReturn:
        raise UsageError("a bus is asynchronous: write `async with connect(...)`, or `with connect_blocking(...)`")

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        try:
            await self.broker.begin()
        except BaseException:
            await self.aclose(0)
            raise
        self._life.open()
        if self._life.state is not BusState.CLOSED:
            self._lanes = self._publisher.open()
            self._head = self._traffic.sampling = head = self.hooks.head
            self._current = None if head is None else head.current
            self._known = self._publisher.known
        self._requester.recall_orphans()
        self._controller.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Ctrl-C: durable messages are redelivered later, so handlers of them are not waited for.
        self._closing.interrupted = kind is not None and issubclass(kind, (asyncio.CancelledError, KeyboardInterrupt))
        await self.aclose()

    async def aclose(self, drain_s: float | None = None) -> list[Unfinished]:
        """Accept nothing new, let handlers finish for up to `drain_s` seconds, stop; return the unfinished messages.

        Handlers may publish and request while they finish. Closing twice is allowed and returns the same result. If it
        is cancelled, it stops waiting and closes at once.
        """
        closing = self._begin_to_close(drain_s)
        return await self._closing.wait_for(closing)

    def _begin_to_close(self, drain_s: float | None = None) -> asyncio.Task[list[Unfinished]]:
        drain_s = self.settings.drain_s if drain_s is None else drain_s
        return self._closing.begin(drain_s, self._stop_publishing, self._controller.untap, self._end)

    async def _stop_publishing(self, drain_s: float) -> None:
        self.resume()
        if self._door is not None:
            await self._door.aclose(drain_s)
        self._lanes = self._known = {}
        self._traffic.end_run()
        self._publisher.close()

    async def _end(self) -> None:
        self._requester.end()
        self._handlers.end()
        if self._deciding is not None and self._head is not None:
            self._deciding.cancel()
            self._head.decide(self._traffic.run)
        await self._controller.aclose()
        self.broker.finders.remove(self._traffic.history.find)

    async def quiet(self) -> None:
        """Return when all messages that have arrived at the handlers of this bus are handled or dead.

        In memory these are all messages published so far; messages from a hub may still be in transit.
        """
        await self._handlers.quiet()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
