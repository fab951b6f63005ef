"""A session: one client's connection as the hub sees it. Frames come in; what a turn brings goes out at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.delivery.batch import Batch, BatchPart
from trunkline.delivery.outlet import Outlet
from trunkline.errors import ProtocolError, TrunklineError
from trunkline.hub.access import Action
from trunkline.hub.member import Member
from trunkline.hub.notices import Notices
from trunkline.transports.transport import HIGH_BYTES, Frame, Wire
from trunkline.wire import control, frames
from trunkline.wire.frames import DeliverHead, Kind

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub

log = logging.getLogger("trunkline.hub")

MAX_CONTROL_BYTES = 16 * 1024 * 1024
TAKEN_S = 0.005
"""So long the word that batches are taken may wait, if nobody waits for it."""
DEAF_BYTES = 4 * HIGH_BYTES
"""While a client has so much to hear, it is not read from."""


class Session:
    def __init__(self, hub: Hub, wire: Wire, number: int) -> None:
        self.hub = hub
        self.wire = wire
        self.id = f"{hub.id}.{number}"
        self.identity = wire.peer.identity
        self.name = ""
        """What the client calls itself; empty until it has said hello."""
        self.origin = 0
        self.outlets: dict[int, Outlet] = {}
        self.waiting_bytes = 0
        self.max_waiting_bytes = hub.settings.limits.pending_bytes
        self.max_body_bytes = frames.room_for_body(hub.settings.max_frame_bytes)
        """What the client takes in one frame, besides its head."""
        self.members: dict[int, Member] = {}
        self.early: dict[int, int] = {}
        """Members that are being opened, and credit that came for them meanwhile."""
        self.links: list[tuple[str, str]] = []
        self.replies: set[str] = set()
        """Reply topics that it has proved to be its own."""
        self.topics: dict[str, control.TopicInfo] = {}
        """Where it publishes, and what it was told of that."""
        self.heard_at = hub.now()
        self.since = hub.world.time_ns() / 1e9
        self.suspected = False
        self.published = 0
        self.delivered = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.malformed = 0
        self._pending: dict[int, Batch] = {}
        self._pending_bytes = 0
        self._paused = False
        self._slowed = False
        self._deaf = False
        self._backlog = 0
        self._last_number = -1
        self._out: list[Frame] = []
        self._out_bytes = 0
        self._runs: list[tuple[int, int, int]] = []
        self._failures: list[control.Failure] = []
        self._stuck: dict[Outlet, None] = {}
        self._thirsty: list[asyncio.Future[None]] = []
        self._notices = Notices()
        self._next_seq = 0
        self._untold = 0
        self._many = hub.settings.window // 8
        self._urgent = False
        self._later: asyncio.TimerHandle | None = None
        self.ended = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the wire has ended, too: it may have something left to send."""

    # What comes in

    def received(self, batch: Sequence[memoryview]) -> None:
        hub = self.hub
        self.heard_at = hub.now()
        hub.turn_begin()
        try:
            for frame in batch:
                self.received_bytes += len(frame)
                if self.ended:
                    return
                self._take(frame)
        finally:
            hub.turn_end()

    def _take(self, frame: memoryview) -> None:
        try:
            kind = frame[0] if frame else 0
            if kind == Kind.PUBLISH:
                self._publish(frame)
            elif kind == Kind.CONTROL:
                if len(frame) > MAX_CONTROL_BYTES:
                    raise ProtocolError("too_large", f"{len(frame):,} bytes of control: {MAX_CONTROL_BYTES:,} will do")
                said = control.read_from_client(frame[1:])
                if self.hub.tracing:
                    self.hub.trace(self, "in", said)
                if self.name or isinstance(said, control.Hello):
                    self.hub.answers.take(self, said)
                else:
                    raise ProtocolError("out_of_order", "say HELLO first")
            else:
                raise ProtocolError("unknown_kind", f"no frame is of kind {kind}")
        except ProtocolError as error:
            self.complain(error, _batch_in(frame))
        except Exception:
            # Whatever it was: the others must not suffer for it.
            log.exception("a frame of %s could not be worked on", self.name or self.wire.peer.address)
            self.hub.counts["internal_errors"] += 1
            number = _batch_in(frame)
            if (batch := self._pending.pop(number, None)) is not None:
                self._pending_bytes -= batch.size
            self.say(control.Error(code="internal", text="the hub failed at this: its log says why", batch=number))

    def broken(self, error: ProtocolError) -> None:
        self.complain(error)
        self.end(error.text)

    def complain(self, error: ProtocolError, batch: int = -1) -> None:
        """A bad frame: answered, counted, and too many of them end the connection."""
        self.malformed += 1
        self.hub.counts["malformed"] += 1
        self.say(control.Error(code=error.code, text=error.text, batch=batch))
        if not self.name or self.malformed > self.hub.settings.max_malformed:
            self.end(f"{self.malformed} bad frames, the last: {error.text}")

    def _publish(self, frame: memoryview) -> None:
        if not self.name:
            raise ProtocolError("out_of_order", "say HELLO first")
        head, body = frames.open_publish(frame)
        if head.number <= self._last_number:
            raise ProtocolError("out_of_order", f"batch {head.number} after batch {self._last_number}")
        self._last_number = head.number
        batch = Batch(self, head, bytes(body), self.origin)
        self._pending[head.number] = batch
        self._pending_bytes += batch.size
        self.published += head.count
        self.hub.publish(self, batch)
        if self._pending_bytes > self.hub.settings.limits.pending_bytes:
            self._pause()
        if self.hub.rates is not None and not self._slowed:
            wait_s = self.hub.rates.charge(self.identity, head.count, self.hub.now())
            if wait_s > 0:
                self._slowed = True
                self._pause()
                asyncio.get_running_loop().call_later(wait_s, self._go_on)

    def excused(self) -> bool:
        """Whether its silence means nothing: it is not read from, and it does take what it is told."""
        before, self._backlog = self._backlog, self.wire.backlog
        return self._paused and (not self._deaf or self._backlog < before)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self.wire.pause()

    def _go_on(self) -> None:
        self._slowed = False
        self._resume()

    def _resume(self) -> None:
        self._deaf = self._deaf and self.full
        enough = self._pending_bytes > self.hub.settings.limits.pending_bytes
        if self._paused and not self._slowed and not self._deaf and not enough and not self.ended:
            self._paused = False
            self.wire.resume()

    def withdraw(self, number: int, reason: str) -> None:
        batch = self._pending.get(number)
        if batch is not None:
            self.hub.broker.withdraw(batch, reason or "its publisher was cancelled while waiting for room")

    # What becomes of batches

    def settled(self, batch: Batch) -> None:
        if self._pending.pop(batch.number, None) is None:
            return
        self._pending_bytes -= batch.size
        if self._paused:
            self._resume()
        self._failures += batch.failures
        number, first = batch.number, batch.first
        begin, end, seq = self._runs[-1] if self._runs else (0, -2, 0)
        if number == end + 1 and first == self._next_seq:
            self._runs[-1] = (begin, number, seq)
        else:
            self._runs.append((number, number, first))
        self._next_seq = first + batch.count
        self._untold += batch.count
        if batch.urgent or batch.failures or self._untold >= self._many:
            self._tell_taken()
        elif self._later is None:
            # A frame less on the way of each request: one word a moment later is enough for all of them.
            self._later = asyncio.get_running_loop().call_later(TAKEN_S, self._tell_taken)

    def _tell_taken(self) -> None:
        self._urgent = True
        self.hub.touch(self)

    # What goes out

    def say(self, said: control.Control) -> None:
        if self.hub.tracing:
            self.hub.trace(self, "out", said)
        if self._runs or self._failures:
            # What was said first arrives first.
            self._say_taken()
        self._put((frames.control(control.write(said)),))

    def _put(self, frame: Frame) -> None:
        self._out.append(frame)
        for part in frame:
            self._out_bytes += len(part)
        self.hub.touch(self)

    @property
    def full(self) -> bool:
        return self._out_bytes + self.wire.backlog > HIGH_BYTES

    def deliver(self, subscription: int, part: BatchPart) -> None:
        batch = part.batch
        head = DeliverHead(
            subscription,
            part.first,
            batch.topic,
            part.count,
            None,
            batch.origin,
            part.position,
            batch.priority,
        )
        self.delivered += part.count
        if self._notices:
            # What was dropped before comes before: otherwise it seems to be missing.
            self._say_notices()
        self._put(frames.deliver(head, part.body))

    def deliver_some(self, subscription: int, topic: str, seqs: list[int], body: bytes) -> None:
        # Of another priority, they are in another order.
        follow = seqs == list(range(seqs[0], seqs[0] + len(seqs)))
        head = DeliverHead(subscription, seqs[0], topic, len(seqs), None if follow else seqs)
        self.delivered += len(seqs)
        self._put(frames.deliver(head, body))

    def count_dropped(self, count: int) -> None:
        self.hub.counts["dropped"] += count

    def tell_dropped(self, dropped: control.Dropped) -> None:
        if self.full:
            for notice in self._notices.add(dropped):
                self.say(notice)
        else:
            self.say(dropped)

    def _say_notices(self) -> None:
        for notice in self._notices.take():
            self.say(notice)

    def congested(self, outlet: Outlet) -> None:
        self._stuck[outlet] = None

    async def drained(self) -> None:
        if self.full and not self.ended:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._thirsty.append(waiter)
            await waiter

    def writable(self) -> None:
        self.hub.turn_begin()
        try:
            self._say_notices()
            # The highest priority first; among equals, who has waited longest.
            stuck, self._stuck = list(self._stuck), {}
            for outlet in sorted(stuck, key=Outlet.rank, reverse=True):
                outlet.pump()
            if not self.full:
                for waiter in self._thirsty:
                    if not waiter.done():
                        waiter.set_result(None)
                self._thirsty.clear()
        finally:
            self.hub.turn_end()
        self._resume()

    def flush(self) -> None:
        """The end of a turn: send what it brought."""
        if self._urgent and (self._runs or self._failures):
            self._say_taken()
        if self._out and not self.ended:
            out, self._out = self._out, []
            self.sent_bytes += self._out_bytes
            self._out_bytes = 0
            self.wire.send(out)
            self._look_at_backlog()

    def _look_at_backlog(self) -> None:
        backlog = self.wire.backlog
        if backlog <= HIGH_BYTES:
            if self._stuck or self._thirsty or self._notices:
                # All of it went out at once: nobody else will say that there is room again.
                asyncio.get_running_loop().call_soon(self.writable)
        elif backlog > self.hub.settings.limits.pending_bytes + self.hub.settings.max_frame_bytes:
            self.hub.counts["cut_off"] += 1
            self.wire.abort()
            self._leave("it does not read what it is told")
        elif backlog > DEAF_BYTES:
            # Who does not listen need not ask for more.
            self._deaf = True
            self._pause()

    def _say_taken(self) -> None:
        taken = control.Taken(runs=self._runs, failures=self._failures)
        self._runs, self._failures = [], []
        self._untold = 0
        self._urgent = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._put((frames.control(control.write(taken)),))

    # Rights

    def require(self, action: Action, pattern: str) -> None:
        """Raises ProtocolError if the rules say no."""
        if not self.may(action, pattern):
            raise ProtocolError(
                "forbidden", f"{self.identity} may not {action.value} on {pattern}: the hub has no rule for it"
            )

    def may(self, action: Action, pattern: str) -> bool:
        return self.hub.access.may(self.identity, action, pattern, self.replies)

    # The end

    def end(self, reason: str) -> None:
        """Say goodbye, and close the connection."""
        if self.ended:
            return
        self.say(control.Goodbye(reason=reason))
        self.flush()
        self.wire.close()
        self._leave(reason)

    def lost(self, why: str) -> None:
        self.gone.set_result(None)
        if not self.ended:
            self._leave(why)

    def _leave(self, why: str) -> None:
        self.ended = True
        if self._later is not None:
            self._later.cancel()
        for waiter in self._thirsty:
            if not waiter.done():
                waiter.set_result(None)
        self._pending.clear()
        try:
            self.hub.left(self, why)
        except TrunklineError:
            log.exception("%s left, and not all of it could be cleared away", self.name)


def _batch_in(frame: memoryview) -> int:
    """The number of the batch in a frame that cannot be taken; -1 if it holds none, or not even that can be read."""
    if len(frame) < frames.PREFIX.size or frame[0] != Kind.PUBLISH:
        return -1
    size = frames.PREFIX.unpack_from(frame)[1]
    try:
        head = msgspec.msgpack.decode(frame[frames.PREFIX.size : frames.PREFIX.size + size], type=list[Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return -1
    return head[0] if head and type(head[0]) is int and head[0] >= 0 else -1
