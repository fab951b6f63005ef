"""The outbox: batches to be sent to a remote broker, or to be confirmed by it.

Messages that one iteration of the event loop publishes on one topic are sent as one batch; a single message is sent at
once. On a plain topic a publish returns when the message is in the outbox. A window, in messages and in bytes, limits
what is not confirmed. If a subscriber may refuse messages, or the broker stores them first, a publish returns when the
broker has confirmed it. After a reconnection, durable batches that were not confirmed are sent again; the others are
reported as lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from trunkline.brokers.remote.adapter import Adapter, PublishLimits, Rejection, TopicTerms
from trunkline.brokers.remote.lane import LARGE_BYTES, RemoteLane
from trunkline.brokers.remote.slow_subscribers import SlowSubscribers
from trunkline.clock import Sequence as Numbers
from trunkline.delivery.pending import Failures, PendingBatch
from trunkline.errors import BackpressureTimeout, MessageTooLarge, NotConfirmed, PartlyRefused, Refused, SchemaBroken
from trunkline.message import ASKING, MAX_HEADER_BYTES, NORMAL, Message
from trunkline.plural import counted
from trunkline.scheduling import let_others_run
from trunkline.segments import Lease
from trunkline.settings import Settings
from trunkline.topic import OWN_PREFIXES, REPLIES
from trunkline.unchecked import number, number_all, take_numbers

log = logging.getLogger("trunkline.connection")

MAX_BODY_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Used until the broker has sent its limit."""
HIGH_BYTES = 1024 * 1024
"""While this many bytes wait to leave this process, publishers wait."""
FRAME_BYTES = 256 * 1024
"""The space that a frame may need in addition to its messages."""
EXTRA_BYTES = 300
"""Added for each message to the bytes of its frame, for the window in bytes. A hub adds the same."""

COLUMN_BYTES = 64
"""The size of a plain message in columns without its payload: its id, its time, its sizes."""

YIELDS = 64
"""When the broker has asked for it, other processes run after each of this many batches. The broker repeats the request
with its confirmations."""
MAX_OWN_TOPICS = 1000
"""The most lanes for reply topics of other buses and for topics of dead letters. A lane takes about 700 bytes, and most
of these are never used again."""


class SentBatch:
    """A batch that the broker has not confirmed yet."""

    __slots__ = (
        "_pending",
        "bytes",
        "data",
        "lane",
        "lease",
        "lone",
        "number",
        "plain",
        "position",
        "resent",
        "size",
        "urgent",
    )

    def __init__(self, number: int, lane: RemoteLane, size: int, position: int, *, urgent: bool) -> None:
        self.number = number
        self.lane = lane
        self._pending: PendingBatch | None = None
        self.lone: Message | None = None
        """The message, if it was sent alone. A pending batch is then built only on demand."""
        self.plain = True
        """Whether the lone message was published without additional fields."""
        self.size = size
        self.position = position
        """How many messages of its priority were published on its topic before this batch."""
        self.urgent = urgent
        """Whether a publisher waits for the confirmation."""
        self.resent = False
        """Whether the broker may have it already."""
        self.data = b""
        """The batch as the adapter encoded it."""
        self.lease: Lease | None = None
        """The lease of the shared memory that holds the payload. It is released with the batch."""
        self.bytes = 0

    @property
    def pending(self) -> PendingBatch:
        """The messages, and the publishers that wait for them."""
        pending = self._pending
        if pending is None:
            assert self.lone is not None
            pending = self._pending = PendingBatch(self.lane.topic)
            pending.messages = [self.lone]
            pending.plain = self.plain
        return pending

    @pending.setter
    def pending(self, pending: PendingBatch) -> None:
        self._pending = pending

    @property
    def priority(self) -> int:
        """The priority of its messages. A run has the normal one."""
        if self.lone is not None:
            return self.lone.priority
        return NORMAL if self.pending.run is not None else self.pending.messages[0].priority

    @property
    def asks(self) -> bool:
        """Whether the batch contains requests. Plain messages and runs have no type, so they contain none."""
        if self.lone is not None:
            return not self.plain and self.lone.type in ASKING
        pending = self.pending
        if pending.plain or pending.run is not None:
            return False
        return any(each.type in ASKING for each in pending.messages)


class Outbox:
    def __init__(self, adapter: Adapter, settings: Settings, numbers: Numbers) -> None:
        self._adapter = adapter
        self._slow = SlowSubscribers(adapter)
        self.checks_alone = adapter.checks_alone
        self._numbers = numbers
        self._settings = settings
        self.window = settings.backpressure.max_pending
        self.window_bytes = adapter.max_unsent_bytes
        self._max_message = MAX_FRAME_BYTES - FRAME_BYTES
        self._max_body = MAX_BODY_BYTES
        """The largest batch, in bytes of its messages."""
        self._each_bytes = 0
        """Bytes added for each message to account for its columns. 0 unless the frame limit is close to the largest
        batch."""
        self.small_bytes = LARGE_BYTES
        """A payload up to this size fits into a frame with any header fields, so its size need not be checked."""
        self.full = False
        """Whether the window in bytes is used up. Reset when half of it is free again."""
        self._bytes = 0
        self._crowded: dict[RemoteLane, None] = {}
        """Lanes with publishers that wait for room."""
        self.pending: dict[str, PendingBatch] = {}
        self.lanes: dict[str, RemoteLane] = {}
        self._own: dict[str, None] = {}
        """The lanes of the bus's own topics, oldest first."""
        self._sent: dict[int, SentBatch] = {}
        self._unsent: deque[SentBatch] = deque()
        """Batches made while there was no connection, or while earlier ones were still unsent."""
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self.idle = True
        """Whether the next publish is sent at once: it is the first of a turn of the event loop, and the last turn with
        a publish had only one."""
        self._begun = 0
        """Batches begun in this turn."""
        self._yields = 0
        """After each of this many more batches sent in the middle of a turn, other processes run."""
        self.confirmed = 0
        """Messages that the broker has confirmed."""
        self.lost_messages = 0
        """Messages sent on a connection that ended before the broker had confirmed them."""
        self.on_lost: list[Callable[[Sequence[Message], Refused], None]] = []
        self.on_unserved: list[Callable[[Message, Sequence[str]], None]] = []

    # Adding messages

    def lane(self, topic: str) -> RemoteLane:
        lane = self.lanes.get(topic)
        if lane is None:
            if len(self.lanes) >= self._settings.max_topics:
                self._forget_idle()
            lane = self.lanes[topic] = RemoteLane(self, topic)
            if topic == REPLIES or topic.startswith(OWN_PREFIXES):
                lane.learn(_OwnTopic(topic))
                self._own[topic] = None
                if len(self._own) > MAX_OWN_TOPICS:
                    self._forget_own()
        return lane

    def _forget_idle(self) -> None:
        for topic in [topic for topic, lane in self.lanes.items() if self._is_idle(lane)][:1000]:
            del self.lanes[topic]
            self._own.pop(topic, None)

    def _forget_own(self) -> None:
        """Remove up to two of the oldest for each new lane.

        A lane with messages in flight is kept, and becomes the newest.
        """
        for topic in list(itertools.islice(self._own, 2)):
            del self._own[topic]
            if self._is_idle(self.lanes[topic]):
                del self.lanes[topic]
            else:
                self._own[topic] = None
            if len(self._own) <= MAX_OWN_TOPICS:
                break

    def _is_idle(self, lane: RemoteLane) -> bool:
        return not lane.in_flight and not lane.waiting and lane.topic not in self.pending

    def published(self) -> dict[str, int]:
        """How many messages were published on each topic in use, including those that are not sent yet."""
        unsent = {topic: pending.count for topic, pending in self.pending.items()}
        counts = {topic: sum(lane.published.values()) + unsent.get(topic, 0) for topic, lane in self.lanes.items()}
        return {topic: count for topic, count in counts.items() if count}

    def opened(self, topic: str) -> PendingBatch | None:
        """The pending batch of a topic, or None. Its run is opened, so that single messages can be added."""
        pending = self.pending.get(topic)
        if pending is not None and pending.run is not None:
            pending.open()
        return pending

    def begin(self, lane: RemoteLane) -> PendingBatch:
        pending = self.pending[lane.topic] = PendingBatch(lane.topic)
        self.idle = False
        self._begun += 1
        if not self._scheduled:
            self._schedule()
        return pending

    def _schedule(self) -> None:
        self._scheduled = True
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._end_turn)

    def send_first(self, lane: RemoteLane, messages: list[Message], *, plain: bool = True) -> None:
        """Send a batch at once: the first of a turn, while `idle`, or one of another kind than the rest."""
        self.idle = False
        self._begun += 1
        pending = PendingBatch(lane.topic)
        pending.messages = messages
        pending.plain = plain
        lane.in_flight += len(messages)
        self._send(lane, pending)
        self._adapter.flush()
        if not self._scheduled:
            # After sending, so that the broker can work meanwhile.
            self._schedule()

    def send_lone(self, lane: RemoteLane, message: Message, *, plain: bool) -> None:
        """As `send_first`, of one message of a lane that is `immediate`."""
        self.idle = False
        self._begun += 1
        lane.in_flight += 1
        priority, published = message.priority, lane.published
        position = published.get(priority, 0)
        published[priority] = position + 1
        self._number = number = self._number + 1
        sent = SentBatch(number, lane, 1, position, urgent=2 * lane.in_flight >= self.window)
        sent.lone, sent.plain = message, plain
        self._dispatch(sent)
        if not self._scheduled:
            # After sending, so that the broker can work meanwhile.
            self._schedule()

    async def put_slowly(self, lane: RemoteLane, messages: Sequence[Message], *, alike: bool) -> Failures:
        """Request the terms of the topic, wait for room, and wait for confirmation where that is needed."""
        if lane.terms is None:
            await self._slow.inquire(lane)
        broken: Failures = []
        size = self.weigh(messages, alike=alike)
        alone_bytes = self._adapter.alone_bytes
        cuts = self._cuts(messages) if len(messages) > 1 and size > min(self._max_body, alone_bytes) else ()
        if len(cuts) > 1:
            for start, end in cuts:
                part = messages[start:end]
                try:
                    broken += await self.put_slowly(lane, part, alike=alike)
                except PartlyRefused as error:
                    # This whole part was refused. The other parts are still sent.
                    broken += error.refused
                except SchemaBroken as error:
                    broken += [(message, error) for message in part]
            return broken
        if lane.terms is not None and lane.terms.schema is not None:
            messages, broken = await self._check(lane.terms, messages)
        await self._room(lane)
        pending = self.opened(lane.topic)
        alone = size >= alone_bytes and len(messages) == 1
        if pending is not None and (
            alone or (lane.confirm and not lane.durable) or pending.size + size > self._max_body
        ):
            # A publish that can be withdrawn must not share a batch with others, and no frame may become too large.
            self.send_now(pending)
            pending = None
        if pending is None:
            pending = self.begin(lane)
        lane.in_flight += len(messages)
        pending.size += size
        if not lane.confirm:
            # The confirmation of a large message is urgent: it frees the memory of the payload.
            pending.extend(messages, None, alike=alike and not alone)
            if alone:
                self.send_now(pending)
            return broken
        taken: asyncio.Future[Failures] = asyncio.get_running_loop().create_future()
        pending.extend(messages, taken, alike=alike)
        if alone or not lane.durable:
            self.send_now(pending)
        return broken + await self._confirmed(pending, taken)

    async def put_alone(self, lane: RemoteLane, messages: Sequence[Message], *, again: bool) -> Failures:
        """Send the messages as one batch that no others join. Returns when the broker has confirmed it, also on plain
        topics.

        `again` prevents a batch that was sent before from being stored twice.
        """
        if lane.terms is None:
            await self._adapter.inquire(lane.topic)
        size = self.weigh(messages)
        broken: Failures = []
        if lane.terms is not None and lane.terms.schema is not None:
            messages, broken = await self._check(lane.terms, messages)
        await self._room(lane)
        self.send_topic(lane.topic)
        taken: asyncio.Future[Failures] = asyncio.get_running_loop().create_future()
        pending = PendingBatch(lane.topic)
        pending.size = size
        pending.extend(messages, taken, alike=False)
        lane.in_flight += len(messages)
        self._send(lane, pending, resent=again)
        self._adapter.flush()
        return broken + await self._confirmed(pending, taken)

    def weigh(self, messages: Sequence[Message], *, alike: bool = False) -> int:
        """The total size in bytes. Raises MessageTooLarge if a message does not fit into a frame.

        `alike` asserts that the bus has made the messages, with header fields of one size.
        """
        if alike:
            header_bytes = messages[0].header_bytes
            sizes = [len(message.payload) + header_bytes for message in messages]
        else:
            sizes = [_bytes_of(message) for message in messages]
        if max(sizes) > self._max_message:
            raise MessageTooLarge(max(sizes), self._max_message)
        return sum(sizes) + self._each_bytes * len(sizes)

    def _cuts(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Where to cut messages so that each part fits into a frame, and messages that must be sent alone are alone."""
        alone_bytes = self._adapter.alone_bytes
        cuts: list[tuple[int, int]] = []
        start = size = 0
        for index, message in enumerate(messages):
            weight = _bytes_of(message) + self._each_bytes
            if size and (size + weight > self._max_body or max(size, weight) >= alone_bytes):
                cuts.append((start, index))
                start, size = index, 0
            size += weight
        return [*cuts, (start, len(messages))]

    async def _check(self, terms: TopicTerms, messages: Sequence[Message]) -> tuple[Sequence[Message], Failures]:
        """The messages that match the schema of the topic, and the others. Raises if none matches."""
        fitting, broken = await self._adapter.check(terms, messages)
        if not fitting:
            raise broken[0][1] if len(broken) == 1 else PartlyRefused(broken, len(broken))
        return fitting, broken

    async def _room(self, lane: RemoteLane) -> None:
        lane.close_run()
        if lane.in_flight < self.window and not lane.waiting and not self.full and self._adapter.backlog < HIGH_BYTES:
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.append(room)
        self._crowded[lane] = None
        lane.measure()
        self.send_all_pending()
        timeout_s = self._settings.backpressure.timeout_s
        try:
            if not await self._slow.wait(lane, room, timeout_s):
                raise BackpressureTimeout(f"the {self._adapter.name}, on {lane.topic}", timeout_s)
        finally:
            lane.waiting.remove(room)
            if not lane.waiting:
                del self._crowded[lane]
            lane.measure()

    async def _confirmed(self, pending: PendingBatch, taken: asyncio.Future[Failures]) -> Failures:
        timeout_s = self._settings.backpressure.timeout_s
        waiting = self._slow.wait(self.lanes[pending.topic], taken, timeout_s)
        if not await self._wait_for(taken, waiting, pending, "its publisher was cancelled while waiting for room"):
            self._withdraw(pending, taken, f"backpressure timeout after {timeout_s:g} s")
            await self._wait_for(taken, asyncio.wait([taken], timeout=self._adapter.connect_s), pending, "")
            if not taken.done():
                raise NotConfirmed(self._adapter.url)
            # Messages that were still waiting were withdrawn. The others reached their subscribers, although the
            # confirmation was late.
            return [
                (message, BackpressureTimeout(error.subscriber, timeout_s))
                if isinstance(error, BackpressureTimeout)
                else (message, error)
                for message, error in taken.result()
            ]
        return taken.result()

    async def _wait_for(
        self, taken: asyncio.Future[Failures], waiting: Awaitable[Any], pending: PendingBatch, why: str
    ) -> Any:
        try:
            return await waiting
        except asyncio.CancelledError:
            taken.cancel()
            self._withdraw(pending, taken, why)
            raise

    def _withdraw(self, pending: PendingBatch, taken: asyncio.Future[Failures], why: str) -> None:
        """Withdraw a batch whose publisher no longer waits. A batch that others share and wait for is not withdrawn."""
        if any(waiter.future is not taken and not waiter.gone for waiter in pending.waiters):
            return
        for sent in self._sent.values():
            if sent.pending is pending:
                self._adapter.withdraw(sent.number, why)
                return

    def release_gone(self) -> None:
        """Withdraw the batches whose owners have all given up. Without a connection such a batch fails at once."""
        self.send_all_pending()
        for sent in self._sent.values():
            if _given_up(sent.pending):
                self._adapter.withdraw(sent.number, "its publisher was cancelled or timed out")
        unsent, self._unsent = self._unsent, deque()
        for sent in unsent:
            self._keep_unsent(sent)

    def _keep_unsent(self, sent: SentBatch) -> None:
        if _given_up(sent.pending):
            self._count_out(sent)
            self._fail(sent.pending, lambda: NotConfirmed(self._adapter.url))
        else:
            self._unsent.append(sent)

    # Sending

    def _end_turn(self) -> None:
        """Called at the end of a turn of the event loop in which something was published."""
        self._scheduled = False
        self.idle = self._begun == 1
        self._begun = 0
        if self.pending:
            self.idle = self.idle and all(pending.count == 1 for pending in self.pending.values())
            self.send_all_pending()

    def send_all_pending(self) -> None:
        """Send what was published so far, in the middle of a turn."""
        for pending in list(self.pending.values()):
            self.send_pending(pending)
        self._adapter.flush()

    def send_now(self, pending: PendingBatch) -> None:
        """Send a batch in the middle of a turn, so that the broker can work while the turn continues."""
        self.send_pending(pending)
        self._adapter.flush()
        if self._yields and pending.count > 1:
            self._yields -= 1
            let_others_run()

    def give_way(self) -> None:
        """See `Shared.give_way`."""
        self._yields = YIELDS

    def send_topic(self, topic: str) -> None:
        """Send what was published on a topic so far."""
        if (pending := self.pending.get(topic)) is not None:
            self.send_now(pending)

    def send_pending(self, pending: PendingBatch) -> None:
        if self.pending.get(pending.topic) is pending:
            del self.pending[pending.topic]
        lane = self.lanes[pending.topic]
        if (run := pending.run) is not None:
            payloads = pending.columns(run)[2]
            if sum(map(len, payloads)) + self._each_bytes * len(payloads) <= self._max_body:
                self._send(lane, pending)
                return
        pending.open()
        messages = pending.messages
        if not pending.waiters and len(messages) == 1:
            self._send(lane, pending)
            return
        if pending.owner is not None or any(waiter.owner is not None for waiter in pending.waiters):
            # `post` does not count the messages of a pipeline. They are counted here.
            lane.in_flight += sum(len(share) for waiter, share in pending.shares() if waiter.owner is not None)
        if not messages:
            return
        size = sum([len(message.payload) for message in messages] if pending.plain else map(_bytes_of, messages))
        size += self._each_bytes * len(messages)
        pending.size = size
        if (size > self._max_body or size >= self._adapter.alone_bytes) and all(
            waiter.future is None for waiter in pending.waiters
        ):
            for start, end in self._cuts(messages):
                part = pending.part(start, end)
                part.size = len(messages[start].payload)
                self._send(lane, part)
        else:
            # If a publisher waits for the batch, its messages were already cut into parts.
            self._send(lane, pending)

    def _send(self, lane: RemoteLane, pending: PendingBatch, *, resent: bool = False) -> None:
        if pending.run is not None:
            pending.run.close()
            if pending.count == 1:
                pending.open()
        if pending.run is None:
            size, priority = len(pending.messages), pending.messages[0].priority
        else:
            size, priority = pending.count, NORMAL
        position = lane.published.get(priority, 0)
        lane.published[priority] = position + size
        urgent = lane.confirm or bool(pending.waiters or lane.waiting) or self.full or 2 * lane.in_flight >= self.window
        self._number += 1
        sent = SentBatch(self._number, lane, size, position, urgent=urgent)
        sent.pending, sent.resent = pending, resent
        self._dispatch(sent)

    def _dispatch(self, sent: SentBatch) -> None:
        """Encode a batch and send it, or keep it until there is a connection. A lone message is sent at once."""
        adapter = self._adapter
        sent.data = data = adapter.encode(sent)
        sent.bytes += len(data) + EXTRA_BYTES * sent.size
        self._bytes += sent.bytes
        self.full = self._bytes >= self.window_bytes
        if self.full:
            for other in self.pending:
                self.lanes[other].close_run()
        if not adapter.live or self._unsent:
            self._unsent.append(sent)
            return
        self._sent[sent.number] = sent
        if sent.lone is None:
            adapter.send(sent)
        else:
            adapter.send_now(sent)

    async def flush(self) -> None:
        """Return when the broker has received everything that was published."""
        self.send_all_pending()
        if self._number:
            await self._adapter.sync()

    # Confirmations

    def topic_changed(self, terms: TopicTerms) -> None:
        if (lane := self.lanes.get(terms.topic)) is not None:
            lane.learn(terms)
            self._slow.learn(lane, terms)

    def taken(self, runs: Sequence[tuple[int, int, int]], rejections: Mapping[int, list[Rejection]]) -> None:
        """See `Shared.taken`."""
        for begin, end, seq in runs:
            for batch in range(begin, end + 1):
                if (sent := self._sent.pop(batch, None)) is not None:
                    self._settle(sent, seq, rejections.get(batch) if rejections else None)
                    seq += sent.size

    def _settle(self, sent: SentBatch, seq: int, rejections: list[Rejection] | None) -> None:
        self.confirmed += sent.size
        if rejections is None:
            lone = sent.lone
            if seq:
                if lone is None:
                    sent.pending.number(seq)
                else:
                    number(lone, seq)
                self._numbers.raise_to(seq + sent.size - 1)
            self._count_out(sent)
            if lone is None and sent.pending.waiters:
                sent.pending.settle([])
            return
        pending = sent.pending
        pending.open()
        messages = pending.messages
        placed = _numbered(messages, rejections)
        if seq:
            number_all(placed, seq)
            self._numbers.raise_to(seq + len(placed) - 1)
        self._count_out(sent)
        for rejection in rejections:
            if rejection.index < 0 and rejection.error is not None:
                self._fail(pending, rejection.error)
                return
        found: Failures = [
            (messages[each.index], each.error())
            for each in rejections
            if each.index < len(messages) and each.error is not None
        ]
        unclaimed = {id(message) for message in pending.unclaimed()}
        if pending.waiters:
            pending.settle(found)
        for message, error in found:
            if id(message) in unclaimed:
                # The publisher did not wait, so the error is reported afterwards.
                assert isinstance(error, Refused)
                self._report_lost([message], error)

    def rejected(self, number: int, error: Callable[[], Refused]) -> None:
        """Called when the broker rejected a whole batch: no subscriber received it, and it will not be confirmed."""
        sent = self._sent.pop(number, None)
        if sent is not None:
            self._count_out(sent)
            self._fail(sent.pending, error)

    def unserved(self, number: int) -> Callable[[Sequence[str]], None]:
        """See `Shared.unserved`."""
        sent = self._sent.get(number)
        asked = [] if sent is None else [each for each in sent.pending.messages if each.type in ASKING]

        def fail(nearest: Sequence[str]) -> None:
            for message in asked:
                for report in self.on_unserved:
                    report(message, nearest)

        return fail

    def _count_out(self, sent: SentBatch) -> None:
        sent.lane.in_flight -= sent.size
        self._bytes -= sent.bytes
        if self.full and self._bytes <= self.window_bytes // 2:
            self.full = False
        if self._crowded and not self.full:
            self._let_in()

    def _let_in(self) -> None:
        """Wake publishers that wait for room, if there is enough of it."""
        for lane in list(self._crowded):
            if lane.in_flight <= self.window // 2:
                for waiter in list(lane.waiting)[: self.window - lane.in_flight]:
                    if not waiter.done():
                        waiter.set_result(None)

    def _fail(self, pending: PendingBatch, why: Callable[[], Refused]) -> None:
        pending.open()
        take_numbers(pending.messages)
        if pending.waiters:
            pending.fail(why)
        if unclaimed := pending.unclaimed():
            # Publishers that did not wait get the error afterwards.
            self._report_lost(unclaimed, why())

    def _report_lost(self, messages: Sequence[Message], error: Refused) -> None:
        for report in self.on_lost:
            report(messages, error)

    # The connection

    def connected(self, limits: PublishLimits) -> None:
        self.window = min(limits.window, self._settings.backpressure.max_pending)
        self._max_message = limits.max_frame_bytes - min(FRAME_BYTES, limits.max_frame_bytes // 4)
        self._max_body = min(MAX_BODY_BYTES, self._max_message)
        self._each_bytes = COLUMN_BYTES if limits.max_frame_bytes < 4 * MAX_BODY_BYTES else 0
        self.small_bytes = min(LARGE_BYTES, self._max_message - MAX_HEADER_BYTES)
        self.window_bytes = min(limits.window_bytes, self._adapter.max_unsent_bytes)
        for lane in self.lanes.values():
            if lane.terms is not None and not isinstance(lane.terms, _OwnTopic):
                # The broker may have restarted, or the topic may have other subscribers.
                self._adapter.inquire_soon(lane.topic)
        unsent, self._unsent = self._unsent, deque()
        for sent in unsent:
            if len(sent.data) <= limits.max_frame_bytes:
                self._sent[sent.number] = sent
                self._adapter.send(sent)
                continue
            # The new connection has a lower limit. The broker would end the connection at each attempt.
            most = limits.max_frame_bytes
            text = f"a batch has {len(sent.data):,} bytes, and the {self._adapter.name} accepts at most {most:,}"
            self._count_out(sent)
            self._fail(sent.pending, lambda text=text: Refused(text))  # type: ignore[misc]
        self._adapter.flush()

    def disconnected(self) -> None:
        """Keep or fail the unconfirmed batches.

        Durable batches are kept, and sent again. The others are reported as lost: the broker may or may not have
        received them.
        """
        sent, self._sent = self._sent, {}
        lost = 0
        for batch in sent.values():
            if batch.lane.durable:
                batch.resent = True
                batch.lease = None
                batch.data = self._adapter.encode(batch)
                self._keep_unsent(batch)
                continue
            lost += batch.size
            self._count_out(batch)
            self._fail(batch.pending, lambda: NotConfirmed(self._adapter.url))
        if lost:
            self.lost_messages += lost
            log.warning(
                "%s not confirmed by %s before the connection ended", counted(lost, "message"), self._adapter.url
            )

    def writable(self) -> None:
        if self._crowded and not self.full:
            self._let_in()

    def close(self) -> None:
        """Stop sending. Publishers that still wait get NotConfirmed."""
        self.send_all_pending()
        for batch in (*self._sent.values(), *self._unsent):
            self._fail(batch.pending, lambda: NotConfirmed(self._adapter.url))
        self._sent.clear()
        self._unsent.clear()


def _given_up(pending: PendingBatch) -> bool:
    """Whether all messages of the batch were published by owners that have given up."""
    waiters = pending.waiters
    return bool(waiters) and waiters[0].start == 0 and all(each.owner is not None and each.gone for each in waiters)


class _OwnTopic(msgspec.Struct, frozen=True):
    """The terms of a topic of the bus itself, for replies and notices. They are fixed, so the broker is not asked."""

    topic: str
    heard: bool = True
    confirm: bool = False
    durable: bool = False
    channel: str | None = None
    schema: str | None = None
    full: tuple[tuple[str, int], ...] = ()


def _numbered(messages: Sequence[Message], rejections: Sequence[Rejection]) -> Sequence[Message]:
    """The messages that have the numbers of their batch.

    Messages that the broker removed from the batch have no number, or their own.
    """
    out = {each.index: each.seq for each in rejections if not each.takes_number}
    for index, seq in out.items():
        if seq is not None and 0 <= index < len(messages):
            number(messages[index], seq)
    return [message for index, message in enumerate(messages) if index not in out] if out else messages


def _bytes_of(message: Message) -> int:
    return len(message.payload) + message.header_bytes
