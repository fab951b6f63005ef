"""The outbox: what is published here on its way to the hub.

What one turn of the event loop publishes on one topic travels as one frame. On a plain topic a publish is done when it
is in the outbox, which runs ahead of the hub by no more than a window; where a subscriber may refuse, or the hub stores
first, it is done when the hub has said so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any

from msgspec.structs import force_setattr, replace

from trunkline import columns
from trunkline.brokers.hub.connection import Connection, State
from trunkline.brokers.hub.contract import DEAD_LETTER, Contracts, numbered
from trunkline.brokers.hub.lane import HubLane
from trunkline.brokers.hub.refusals import refusal
from trunkline.clock import Sequence as Numbers
from trunkline.delivery.pending import Failures, Turn
from trunkline.errors import (
    BackpressureTimeout,
    HubRefused,
    MessageTooLarge,
    NotConfirmed,
    PartlyRefused,
    Refused,
    SchemaBroken,
)
from trunkline.message import Message
from trunkline.settings import Settings
from trunkline.topic import OWN_PREFIXES, REPLIES
from trunkline.wire import control, frames
from trunkline.wire.frames import MAX_FRAME_BYTES, PublishHead

log = logging.getLogger("trunkline.link")

MAX_BODY_BYTES = 1024 * 1024
HIGH_BYTES = 1024 * 1024
"""While so much waits to leave this process, publishers wait, too."""
FRAME_BYTES = 256 * 1024
"""What a frame may need besides what is in its messages."""
EXTRA_BYTES = 300
"""What a message counts beyond its frame, for the window in bytes: the hub counts so, too."""


class Sent:
    """A batch that the hub has not taken yet."""

    __slots__ = ("bytes", "frame", "lane", "number", "size", "turn")

    def __init__(self, number: int, lane: HubLane, turn: Turn, frame: bytes) -> None:
        self.number = number
        self.lane = lane
        self.turn = turn
        self.frame = frame
        self.size = len(turn.messages)
        self.bytes = len(frame) + EXTRA_BYTES * self.size


class Outbox:
    def __init__(self, connection: Connection, settings: Settings, numbers: Numbers) -> None:
        self._connection = connection
        self._numbers = numbers
        self._settings = settings
        self.window = settings.backpressure.max_pending
        self.window_bytes = connection.settings.max_unsent_bytes
        self._max_message = MAX_FRAME_BYTES - FRAME_BYTES
        self.full = False
        """Whether as many bytes are on their way as may be."""
        self._bytes = 0
        self._crowded: dict[HubLane, None] = {}
        """Lanes in which somebody waits for room."""
        self.turn: dict[str, Turn] = {}
        self.lanes: dict[str, HubLane] = {}
        self._sent: OrderedDict[int, Sent] = OrderedDict()
        self._unsent: deque[Sent] = deque()
        """Made while there was no connection, or one that drains too slowly."""
        self._number = 0
        self._scheduled = False
        self.taken = 0
        """Messages that the hub has."""
        self.lost_messages = 0
        """Sent on a connection that ended before the hub had said that it has them."""
        self._contracts = Contracts(connection, settings.max_message_bytes)
        self.on_lost: list[Callable[[Sequence[Message], Refused], None]] = []
        connection.heard[control.TopicInfo] = self._learn
        connection.heard[control.Taken] = self._taken
        connection.heard[control.Error] = self._complained

    # Putting in

    def lane(self, topic: str) -> HubLane:
        lane = self.lanes.get(topic)
        if lane is None:
            if len(self.lanes) >= self._settings.max_topics:
                self._forget_idle()
            lane = self.lanes[topic] = HubLane(self, topic)
            if topic == REPLIES or topic.startswith(OWN_PREFIXES):
                # Answers and notices: nobody waits for them, so there is nothing to ask.
                lane.learn(control.TopicInfo(topic=topic, heard=True))
        return lane

    def _forget_idle(self) -> None:
        for topic in [topic for topic, lane in self.lanes.items() if not lane.in_flight and not lane.line][:1000]:
            if topic not in self.turn:
                del self.lanes[topic]

    def begin(self, lane: HubLane) -> Turn:
        turn = self.turn[lane.topic] = Turn(lane.topic)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.send_turns)
        return turn

    async def put_slowly(self, lane: HubLane, messages: Sequence[Message], *, alike: bool) -> Failures:
        """The whole way: ask what the topic is, wait for room, and for the hub's word where that is needed."""
        if lane.info is None:
            await self._inform(lane)
        broken: Failures = []
        size = self.weigh(messages)
        if size > MAX_BODY_BYTES and len(messages) > 1:
            for start, end in _cuts(messages):
                part = messages[start:end]
                try:
                    broken += await self.put_slowly(lane, part, alike=alike)
                except PartlyRefused as error:
                    # All of this part: the others are not to suffer for it.
                    broken += error.refused
                except SchemaBroken as error:
                    broken += [(message, error) for message in part]
            return broken
        if lane.info is not None and lane.info.schema is not None:
            messages, broken = await self._contracts.sift(lane.info, messages)
            if not messages:
                raise broken[0][1] if len(broken) == 1 else PartlyRefused(broken, len(broken))
        await self._room(lane)
        turn = self.turn.get(lane.topic)
        if turn is not None and ((lane.confirm and not lane.durable) or turn.size + size > MAX_BODY_BYTES):
            # Each on its own: one that gives up must not take others with it. And no frame too large.
            self.send_now(turn)
            turn = None
        if turn is None:
            turn = self.begin(lane)
        lane.in_flight += len(messages)
        turn.size += size
        if not lane.confirm:
            turn.extend(messages, None, alike=alike)
            return broken
        taken: asyncio.Future[Failures] = asyncio.get_running_loop().create_future()
        turn.extend(messages, taken, alike=alike)
        if not lane.durable:
            self.send_now(turn)
        return broken + await self._confirmed(lane, turn, taken)

    async def put_alone(self, lane: HubLane, messages: Sequence[Message], *, again: bool) -> Failures:
        """A batch that travels in one piece and without others. Returns when the hub has it, on plain topics, too.

        The hub knows it by its first message: if the batch was sent before, `again` keeps it from being stored twice.
        """
        if lane.info is None:
            await self._inform(lane)
        self.weigh(messages)
        broken: Failures = []
        if lane.info is not None and lane.info.schema is not None:
            messages, broken = await self._contracts.sift(lane.info, messages)
            if not messages:
                raise broken[0][1] if len(broken) == 1 else PartlyRefused(broken, len(broken))
        await self._room(lane)
        self.send_topic(lane.topic)
        taken: asyncio.Future[Failures] = asyncio.get_running_loop().create_future()
        turn = Turn(lane.topic)
        turn.extend(messages, taken, alike=False)
        lane.in_flight += len(messages)
        self._send(lane, turn, again=again)
        self._connection.flush()
        return broken + await self._confirmed(lane, turn, taken)

    def weigh(self, messages: Sequence[Message]) -> int:
        """Bytes in all; raises MessageTooLarge for a message that fits no frame."""
        sizes = [_bytes_of(message) for message in messages]
        if max(sizes) > self._max_message:
            raise MessageTooLarge(max(sizes), self._max_message)
        return sum(sizes)

    async def _inform(self, lane: HubLane) -> None:
        try:
            await self._connection.ask(lambda number: control.Topic(id=number, topic=lane.topic))
        except HubRefused as error:
            raise refusal(error.code, error.text, error.details) from error

    async def _room(self, lane: HubLane) -> None:
        if lane.in_flight < self.window and not lane.line and not self.full and self._connection.backlog < HIGH_BYTES:
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.line.append(room)
        self._crowded[lane] = None
        lane.measure()
        self.send_turns()
        timeout_s = self._settings.backpressure.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await room
        except TimeoutError:
            raise BackpressureTimeout(f"the hub, on {lane.topic}", timeout_s) from None
        finally:
            lane.line.remove(room)
            if not lane.line:
                del self._crowded[lane]
            lane.measure()

    async def _confirmed(self, lane: HubLane, turn: Turn, taken: asyncio.Future[Failures]) -> Failures:
        timeout_s = self._settings.backpressure.timeout_s
        done, _ = await self._wait_for(taken, timeout_s, turn, "its publisher was cancelled while waiting for room")
        if not done:
            self._withdraw(turn, f"backpressure timeout after {timeout_s:g} s")
            await self._wait_for(taken, self._connection.settings.connect_s, turn, "")
            if taken.done() and not taken.exception() and not taken.result():
                raise BackpressureTimeout(f"a subscriber of {lane.topic}", timeout_s)
            if not taken.done():
                raise NotConfirmed(self._connection.url)
        return taken.result()

    async def _wait_for(self, taken: asyncio.Future[Failures], timeout_s: float, turn: Turn, why: str) -> Any:
        try:
            return await asyncio.wait([taken], timeout=timeout_s)
        except asyncio.CancelledError:
            taken.cancel()
            self._withdraw(turn, why)
            raise

    def _withdraw(self, turn: Turn, why: str) -> None:
        for sent in self._sent.values():
            if sent.turn is turn:
                self._connection.say(control.Withdraw(batch=sent.number, reason=why))
                return

    # Sending

    def send_turns(self) -> None:
        """The end of a turn."""
        self._scheduled = False
        for turn in list(self.turn.values()):
            self.send_turn(turn)
        self._connection.flush()

    def send_now(self, turn: Turn) -> None:
        """In the middle of a turn: the hub is to work while this one goes on."""
        self.send_turn(turn)
        self._connection.flush()

    def send_topic(self, topic: str) -> None:
        """What was published there so far."""
        if (turn := self.turn.get(topic)) is not None:
            self.send_now(turn)

    def send_turn(self, turn: Turn) -> None:
        if self.turn.get(turn.topic) is turn:
            del self.turn[turn.topic]
        lane = self.lanes[turn.topic]
        messages = turn.messages
        if not turn.waiters and len(messages) == 1:
            self._send(lane, turn)
            return
        if turn.owner is not None or any(waiter.owner is not None for waiter in turn.waiters):
            # A pipeline does not count for itself.
            lane.in_flight += sum(len(share) for waiter, share in turn.shares() if waiter.owner is not None)
        if not messages:
            return
        size = sum([len(message.payload) for message in messages] if turn.plain else map(_bytes_of, messages))
        if size > MAX_BODY_BYTES and all(waiter.future is None for waiter in turn.waiters):
            for start, end in _cuts(messages):
                self._send(lane, turn.part(start, end))
        else:
            # Where somebody waits, it was cut before.
            self._send(lane, turn)

    def _send(self, lane: HubLane, turn: Turn, *, again: bool = False) -> None:
        messages = turn.messages
        first = messages[0]
        self._number += 1
        head = PublishHead(
            self._number,
            turn.topic,
            len(messages),
            first.priority,
            first.requires_ack,
            first.ttl_s,
            again,
            lane.published.get(first.priority, 0),
            lane.confirm or bool(turn.waiters or lane.line) or self.full or 2 * lane.in_flight >= self.window,
        )
        lane.published[first.priority] = head.position + head.count
        body = columns.pack_batch(messages, plain=turn.plain, alike=turn.alike)
        sent = Sent(self._number, lane, turn, frames.publish(head, body))
        self._bytes += sent.bytes
        self.full = self._bytes >= self.window_bytes
        if self._connection.state is State.LIVE and not self._unsent:
            self._dispatch(sent)
        else:
            self._unsent.append(sent)

    def _dispatch(self, sent: Sent) -> None:
        self._sent[sent.number] = sent
        self._connection.queue((sent.frame,))

    async def flush(self) -> None:
        """Return when the hub has everything."""
        self.send_turns()
        if self._number:
            await self._connection.sync()

    # What the hub says

    def _learn(self, info: control.TopicInfo) -> None:
        if (lane := self.lanes.get(info.topic)) is not None:
            lane.learn(info)

    def _taken(self, taken: control.Taken) -> None:
        failures: dict[int, list[control.Failure]] = {}
        for failure in taken.failures:
            failures.setdefault(failure.batch, []).append(failure)
        for begin, end, seq in taken.runs:
            for number in range(begin, end + 1):
                sent = self._sent.pop(number, None)
                if sent is not None:
                    self._settle(sent, seq, failures.get(number))
                    seq += sent.size

    def _settle(self, sent: Sent, seq: int, failures: list[control.Failure] | None) -> None:
        turn = sent.turn
        messages = turn.messages
        placed = messages if failures is None else numbered(messages, failures)
        if seq:
            deque(map(force_setattr, placed, repeat("seq"), count(seq)), 0)
            self._numbers.last = max(self._numbers.last, seq + len(placed) - 1)
        self.taken += sent.size
        self._count_out(sent)
        if failures is None:
            if turn.waiters:
                turn.settle([])
            return
        whole = next((failure for failure in failures if failure.index < 0), None)
        if whole is not None:
            self._fail(turn, lambda: refusal(whole.code, whole.text, whole.details))
            return
        found: Failures = [
            (messages[each.index], refusal(each.code, each.text, each.details))
            for each in failures
            if each.index < len(messages) and each.code != DEAD_LETTER
        ]
        unclaimed = {id(message) for message in turn.unclaimed()}
        if turn.waiters:
            turn.settle(found)
        for message, error in found:
            if id(message) in unclaimed:
                # Its publisher did not wait: it is told afterwards.
                assert isinstance(error, Refused)
                self._lose([message], error)

    def _complained(self, error: control.Error) -> None:
        """The hub could not take a batch at all: nobody has seen it, and nothing more will be said of it."""
        sent = self._sent.pop(error.batch, None)
        if sent is not None:
            self._count_out(sent)
            self._fail(sent.turn, lambda: refusal(error.code, f"the hub did not take it: {error.text}", error.details))

    def _count_out(self, sent: Sent) -> None:
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
                for waiter in list(lane.line)[: self.window - lane.in_flight]:
                    if not waiter.done():
                        waiter.set_result(None)

    def _fail(self, turn: Turn, why: Callable[[], Refused]) -> None:
        for message in turn.messages:
            force_setattr(message, "seq", 0)
        if turn.waiters:
            turn.fail(why)
        if unclaimed := turn.unclaimed():
            # Those who did not wait are told afterwards.
            self._lose(unclaimed, why())

    def _lose(self, messages: Sequence[Message], error: Refused) -> None:
        for tell in self.on_lost:
            tell(messages, error)

    # The connection

    def live(self, welcome: control.Welcome) -> None:
        self.window = min(welcome.window, self._settings.backpressure.max_pending)
        self._max_message = welcome.max_frame_bytes - FRAME_BYTES
        self.window_bytes = min(welcome.window_bytes, self._connection.settings.max_unsent_bytes)
        for lane in self.lanes.values():
            if lane.info is not None and not (lane.topic == REPLIES or lane.topic.startswith(OWN_PREFIXES)):
                # It may be another hub, or know other subscribers.
                topic = lane.topic
                self._connection.ask_soon(lambda number, topic=topic: control.Topic(id=number, topic=topic))  # type: ignore[misc]
        unsent, self._unsent = self._unsent, deque()
        for sent in unsent:
            if len(sent.frame) <= welcome.max_frame_bytes:
                self._dispatch(sent)
                continue
            # Another hub, with other limits: it would end the connection at each attempt.
            text = f"a batch of {len(sent.frame):,} bytes, and the hub takes {welcome.max_frame_bytes:,}"
            self._count_out(sent)
            self._fail(sent.turn, lambda text=text: Refused(text))  # type: ignore[misc]
        self._connection.flush()

    def lost(self) -> None:
        """What the hub had not taken: durable batches are sent again, of the others nobody knows."""
        sent, self._sent = self._sent, OrderedDict()
        lost = 0
        for batch in sent.values():
            if batch.lane.durable:
                head, body = frames.open_publish(memoryview(batch.frame))
                batch.frame = frames.publish(replace(head, again=True), bytes(body))
                self._unsent.append(batch)
                continue
            lost += batch.size
            self._count_out(batch)
            self._fail(batch.turn, lambda: NotConfirmed(self._connection.url))
        if lost:
            self.lost_messages += lost
            log.warning("%d messages were on their way to the hub at %s: lost, perhaps", lost, self._connection.url)

    def writable(self) -> None:
        if self._crowded and not self.full:
            self._let_in()

    def close(self) -> None:
        """Nothing more will be sent: tell those who wait."""
        self.send_turns()
        for batch in (*self._sent.values(), *self._unsent):
            self._fail(batch.turn, lambda: NotConfirmed(self._connection.url))
        self._sent.clear()
        self._unsent.clear()


def _cuts(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Where to cut messages, so that each part fits a frame well."""
    cuts: list[tuple[int, int]] = []
    start = size = 0
    for index, message in enumerate(messages):
        weight = _bytes_of(message)
        if size and size + weight > MAX_BODY_BYTES:
            cuts.append((start, index))
            start, size = index, 0
        size += weight
    return [*cuts, (start, len(messages))]


def _bytes_of(message: Message) -> int:
    return len(message.payload) + message.header_bytes
