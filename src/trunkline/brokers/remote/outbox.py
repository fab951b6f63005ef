"""The outbox: batches on their way to a remote broker.

Messages that one iteration of the event loop publishes on one topic are sent as one batch; a single message is sent at
once. On a plain topic a publish returns when the message is in the outbox, which is ahead of the broker by at most a
window, in messages and in bytes. Where a subscriber may refuse, or the broker stores first, it returns when the broker
has confirmed it. After a reconnection, durable batches that were not confirmed are sent again; the others are reported
as lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
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
from trunkline.scheduling import let_others_run
from trunkline.segments import Lease
from trunkline.settings import Settings
from trunkline.topic import OWN_PREFIXES, REPLIES
from trunkline.unchecked import number, number_all, take_numbers

log = logging.getLogger("trunkline.connection")

MAX_BODY_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Until the broker has stated its limit."""
HIGH_BYTES = 1024 * 1024
"""While so much waits to leave this process, publishers wait, too."""
FRAME_BYTES = 256 * 1024
"""What a frame may need besides what is in its messages."""
EXTRA_BYTES = 300
"""What a message counts beyond its frame, for the window in bytes. A hub counts the same."""

COLUMN_BYTES = 64
"""What a plain message takes in columns, beside its payload: its id, its time, its sizes."""

YIELDS = 64
"""Batches after which other processes run, once the broker has asked for it. It asks anew when it confirms some."""
MAX_OWN_TOPICS = 1000
"""Reply topics of others and topics of dead letters with a lane, about 700 bytes each: most are never used again."""


class SentBatch:
    """A batch that the broker has not confirmed yet."""

    __slots__ = ("bytes", "data", "lane", "lease", "number", "pending", "position", "resent", "size", "urgent")

    def __init__(
        self, number: int, lane: RemoteLane, pending: PendingBatch, size: int, position: int, urgent: bool, resent: bool
    ) -> None:
        self.number = number
        self.lane = lane
        self.pending = pending
        self.size = size
        self.position = position
        """How many messages of its priority were published on its topic before."""
        self.urgent = urgent
        """Whether somebody waits for the confirmation."""
        self.resent = resent
        """Whether the broker may have it already."""
        self.data = b""
        """As the adapter encoded it."""
        self.lease: Lease | None = None
        """Of the shared memory that its payload is in. With the batch it is gone."""
        self.bytes = 0

    @property
    def asks(self) -> bool:
        """Whether requests are in it. What is plain, or a run, was published without a type."""
        pending = self.pending
        return not pending.plain and pending.run is None and any(each.type in ASKING for each in pending.messages)


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
        """Of one batch, in bytes of its messages."""
        self._each_bytes = 0
        """What counts for each message beside its payload: where a frame is hardly larger than the largest batch."""
        self.small_bytes = LARGE_BYTES
        """A payload up to this size fits a frame with whatever header fields it has, and need not be weighed."""
        self.full = False
        """Whether as many bytes are on their way as may be."""
        self._bytes = 0
        self._crowded: dict[RemoteLane, None] = {}
        """Lanes in which somebody waits for room."""
        self.pending: dict[str, PendingBatch] = {}
        self.lanes: dict[str, RemoteLane] = {}
        self._own: dict[str, None] = {}
        """Of the lanes, those of the bus's own topics, oldest first."""
        self._sent: OrderedDict[int, SentBatch] = OrderedDict()
        self._unsent: deque[SentBatch] = deque()
        """Made while there was no connection, or one that drains too slowly."""
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self.idle = True
        """Whether the next publish is sent at once: it is the first of a turn of the event loop, and the last turn with
        a publish had no other."""
        self._begun = 0
        """Batches of this turn."""
        self._yields = 0
        """After so many more of the batches that are sent in the middle of a turn, other processes run."""
        self.confirmed = 0
        """Messages that the broker has."""
        self.lost_messages = 0
        """Sent on a connection that ended before the broker had confirmed them."""
        self.on_lost: list[Callable[[Sequence[Message], Refused], None]] = []
        self.on_unserved: list[Callable[[Message, Sequence[str]], None]] = []

    # Putting in

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
        """Up to two of the oldest for each that comes. One with something on its way counts as the newest then."""
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
        """How many messages were published on each topic in use, with those that are not sent yet."""
        unsent = {topic: pending.count for topic, pending in self.pending.items()}
        counts = {topic: sum(lane.published.values()) + unsent.get(topic, 0) for topic, lane in self.lanes.items()}
        return {topic: count for topic, count in counts.items() if count}

    def opened(self, topic: str) -> PendingBatch | None:
        """What waits on a topic, for one who puts in messages one by one."""
        pending = self.pending.get(topic)
        if pending is not None and pending.run is not None:
            pending.open()
        return pending

    def begin(self, lane: RemoteLane) -> PendingBatch:
        pending = self.pending[lane.topic] = PendingBatch(lane.topic)
        self._count_in()
        return pending

    def _count_in(self) -> None:
        self.idle = False
        self._begun += 1
        if not self._scheduled:
            self._scheduled = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._end_turn)

    def send_first(self, lane: RemoteLane, messages: list[Message], *, plain: bool = True) -> None:
        """A batch that waits for no other: the first of a turn, while `idle`, or one of another kind than the rest."""
        self._count_in()
        pending = PendingBatch(lane.topic)
        pending.messages = messages
        pending.plain = plain
        lane.in_flight += len(messages)
        self._send(lane, pending)
        self._adapter.flush()

    async def put_slowly(self, lane: RemoteLane, messages: Sequence[Message], *, alike: bool) -> Failures:
        """The whole way: ask what the topic is, wait for room, and for confirmation where that is needed."""
        if lane.terms is None:
            await self._adapter.inquire(lane.topic)
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
                    # All of this part. The other parts are still sent.
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
            # Each on its own: one that gives up must not take others with it. And no frame too large.
            self.send_now(pending)
            pending = None
        if pending is None:
            pending = self.begin(lane)
        lane.in_flight += len(messages)
        pending.size += size
        if not lane.confirm:
            pending.extend(messages, None, alike=alike)
            if alone:
                self.send_now(pending)
            return broken
        taken: asyncio.Future[Failures] = asyncio.get_running_loop().create_future()
        pending.extend(messages, taken, alike=alike)
        if alone or not lane.durable:
            self.send_now(pending)
        return broken + await self._confirmed(pending, taken)

    async def put_alone(self, lane: RemoteLane, messages: Sequence[Message], *, again: bool) -> Failures:
        """A batch that travels in one piece and without others. Returns when the broker has it, on plain topics, too.

        If the batch was sent before, `again` keeps it from being stored twice.
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
        """Bytes in all; raises MessageTooLarge for a message that fits no frame.

        `alike` promises that the bus has made them, with header fields of one size.
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
        """Where to cut messages, so that each part fits a frame well, and those that travel alone are alone."""
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
        """The messages that fit the schema of the topic, and the others; raises if none fits."""
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
            # What still waited was withdrawn; the rest is with its subscribers, although the confirmation was late.
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
        """Its publisher waits no longer. A batch that others share, and wait for, is not withdrawn."""
        if any(waiter.future is not taken and not waiter.gone for waiter in pending.waiters):
            return
        for sent in self._sent.values():
            if sent.pending is pending:
                self._adapter.withdraw(sent.number, why)
                return

    def release_gone(self) -> None:
        """Withdraw what only owners wait for that have given up. Without a connection it fails at once."""
        self.send_all_pending()
        for sent in self._sent.values():
            if _given_up(sent.pending):
                self._adapter.withdraw(sent.number, "its publisher has given up")
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
        """At the end of a turn of the event loop in which something was published."""
        self._scheduled = False
        self.idle = self._begun == 1
        self._begun = 0
        if self.pending:
            self.idle = self.idle and all(pending.count == 1 for pending in self.pending.values())
            self.send_all_pending()

    def send_all_pending(self) -> None:
        """In the middle of a turn: what was published so far."""
        for pending in list(self.pending.values()):
            self.send_pending(pending)
        self._adapter.flush()

    def send_now(self, pending: PendingBatch) -> None:
        """In the middle of a turn of the event loop: the broker works while this one goes on."""
        self.send_pending(pending)
        self._adapter.flush()
        if self._yields and pending.count > 1:
            self._yields -= 1
            let_others_run()

    def give_way(self) -> None:
        """See `Shared.give_way`."""
        self._yields = YIELDS

    def send_topic(self, topic: str) -> None:
        """What was published there so far."""
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
            # A pipeline does not count for itself.
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
            # Where somebody waits, it was cut before.
            self._send(lane, pending)

    def _send(self, lane: RemoteLane, pending: PendingBatch, *, resent: bool = False) -> None:
        if pending.run is not None:
            pending.run.close()
            if pending.count == 1:
                pending.open()
        size = pending.count
        priority = pending.messages[0].priority if pending.run is None else NORMAL
        position = lane.published.get(priority, 0)
        lane.published[priority] = position + size
        urgent = lane.confirm or bool(pending.waiters or lane.waiting) or self.full or 2 * lane.in_flight >= self.window
        self._number += 1
        sent = SentBatch(self._number, lane, pending, size, position, urgent, resent)
        sent.data = self._adapter.encode(sent)
        sent.bytes += len(sent.data) + EXTRA_BYTES * sent.size
        self._bytes += sent.bytes
        self.full = self._bytes >= self.window_bytes
        if self.full:
            for other in self.pending:
                self.lanes[other].close_run()
        if self._adapter.live and not self._unsent:
            self._sent[sent.number] = sent
            self._adapter.send(sent)
        else:
            self._unsent.append(sent)

    async def flush(self) -> None:
        """Return when the broker has everything."""
        self.send_all_pending()
        if self._number:
            await self._adapter.sync()

    # What the broker confirms

    def topic_changed(self, terms: TopicTerms) -> None:
        if (lane := self.lanes.get(terms.topic)) is not None:
            lane.learn(terms)
            self._slow.learn(lane, terms)

    def taken(self, runs: Sequence[tuple[int, int, int]], rejections: Mapping[int, list[Rejection]]) -> None:
        """See `Shared.taken`."""
        for begin, end, seq in runs:
            for batch in range(begin, end + 1):
                sent = self._sent.pop(batch, None)
                if sent is not None:
                    self._settle(sent, seq, rejections.get(batch))
                    seq += sent.size

    def _settle(self, sent: SentBatch, seq: int, rejections: list[Rejection] | None) -> None:
        pending = sent.pending
        self.confirmed += sent.size
        if rejections is None:
            if seq:
                pending.number(seq)
                last = seq + sent.size - 1
                if last > self._numbers.last:
                    self._numbers.last = last
            self._count_out(sent)
            if pending.waiters:
                pending.settle([])
            return
        pending.open()
        messages = pending.messages
        placed = _numbered(messages, rejections)
        if seq:
            number_all(placed, seq)
            self._numbers.last = max(self._numbers.last, seq + len(placed) - 1)
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
                # Its publisher did not wait: it is told afterwards.
                assert isinstance(error, Refused)
                self._report_lost([message], error)

    def rejected(self, number: int, error: Callable[[], Refused]) -> None:
        """The broker did not take a batch at all: nobody has seen it, and it is not confirmed later."""
        sent = self._sent.pop(number, None)
        if sent is not None:
            self._count_out(sent)
            self._fail(sent.pending, error)

    def unserved(self, number: int, nearest: Sequence[str]) -> None:
        """See `Shared.unserved`."""
        sent = self._sent.get(number)
        if sent is not None and sent.asks:
            for message in sent.pending.messages:
                if message.type in ASKING:
                    for report in self.on_unserved:
                        report(message, nearest)

    def _count_out(self, sent: SentBatch) -> None:
        sent.lane.in_flight -= sent.size
        self._bytes -= sent.bytes
        if self.full and self._bytes <= self.window_bytes // 2:
            self.full = False
        if self._crowded and not self.full:
            self._let_in()

    def _let_in(self) -> None:
        """Wake those who wait for room, if there is enough of it to be worth it."""
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
            # Those who did not wait are told afterwards.
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
                # It may be another run of the broker, or have other subscribers.
                self._adapter.inquire_soon(lane.topic)
        unsent, self._unsent = self._unsent, deque()
        for sent in unsent:
            if len(sent.data) <= limits.max_frame_bytes:
                self._sent[sent.number] = sent
                self._adapter.send(sent)
                continue
            # Another broker, with other limits: it would end the connection at each attempt.
            text = f"a batch of {len(sent.data):,} bytes, and the {self._adapter.name} takes {limits.max_frame_bytes:,}"
            self._count_out(sent)
            self._fail(sent.pending, lambda text=text: Refused(text))  # type: ignore[misc]
        self._adapter.flush()

    def disconnected(self) -> None:
        """What was not confirmed: durable batches are sent again, the others are lost, as far as anybody knows."""
        sent, self._sent = self._sent, OrderedDict()
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
            log.warning("%d messages were not confirmed by %s before the connection ended", lost, self._adapter.url)

    def writable(self) -> None:
        if self._crowded and not self.full:
            self._let_in()

    def close(self) -> None:
        """Nothing more will be sent: those who wait get NotConfirmed."""
        self.send_all_pending()
        for batch in (*self._sent.values(), *self._unsent):
            self._fail(batch.pending, lambda: NotConfirmed(self._adapter.url))
        self._sent.clear()
        self._unsent.clear()


def _given_up(pending: PendingBatch) -> bool:
    """Whether all of it was published by owners that have given up."""
    waiters = pending.waiters
    return bool(waiters) and waiters[0].start == 0 and all(each.owner is not None and each.gone for each in waiters)


class _OwnTopic(msgspec.Struct, frozen=True):
    """A topic of the bus itself, for answers and notices: nobody waits for these, so there is nothing to ask."""

    topic: str
    heard: bool = True
    confirm: bool = False
    durable: bool = False
    channel: str | None = None
    schema: str | None = None
    full: tuple[tuple[str, int], ...] = ()


def _numbered(messages: Sequence[Message], rejections: Sequence[Rejection]) -> Sequence[Message]:
    """Those of a batch that have its numbers. What the broker took out has none, or one of its own."""
    out = {each.index: each.seq for each in rejections if not each.takes_number}
    for index, seq in out.items():
        if seq is not None and 0 <= index < len(messages):
            number(messages[index], seq)
    return [message for index, message in enumerate(messages) if index not in out] if out else messages


def _bytes_of(message: Message) -> int:
    return len(message.payload) + message.header_bytes
