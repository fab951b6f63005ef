"""A session: the I/O around the protocol of one connection. The output of one iteration is sent at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from trunkline import columns
from trunkline.delivery.batch import Batch, BatchBody
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.shared_body import SharedBody
from trunkline.errors import InvalidPayload, InvalidTopic, ProtocolError, TrunklineError
from trunkline.hub.access import Action
from trunkline.hub.member import Member
from trunkline.message import Priority
from trunkline.segments import Segment
from trunkline.transports.transport import HIGH_BYTES, Wire
from trunkline.wire import control, frames
from trunkline.wire.frames import DeliverHead, PublishHead, SharedPayload, SharedPublish
from trunkline.wire.server import ServerLimits, ServerProtocol

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub

log = logging.getLogger("trunkline.hub")

TAKEN_S = 0.005
"""TAKEN may be delayed by this time until more batches are settled, unless a publisher waits for it."""
JOIN_S = 0.075
"""TAKEN may be delayed by this additional time, to be written together with another frame to its publisher."""
HIGH = int(Priority.HIGH)
URGENT_S = 0.1
"""For this time after a message of priority HIGH or above, publishers are asked to let other processes run."""
MAX_SEGMENTS = 256
"""The limit for one publisher, because each takes a file descriptor of the hub. Further payloads are copied."""


class Session:
    def __init__(self, hub: Hub, wire: Wire, number: int) -> None:
        limits = hub.settings.limits
        self.hub = hub
        self.wire = wire
        self.id = f"{hub.id}.{number}"
        self.identity = wire.peer.identity
        self.name = ""
        """The client's name for people; empty before HELLO."""
        self.since_ns = 0
        """When its HELLO was accepted."""
        self.library = ""
        self.origin = 0
        self.protocol: ServerProtocol[Batch] = ServerProtocol(
            ServerLimits(
                pending_bytes=limits.pending_bytes,
                max_frame_bytes=hub.settings.max_frame_bytes,
                max_malformed=hub.settings.max_malformed,
                window=hub.settings.window,
                heartbeat_s=hub.settings.heartbeat_s,
                congested_bytes=HIGH_BYTES,
            ),
            hub.now(),
        )
        self.outlets: dict[int, Outlet] = {}
        self.waiting_bytes = 0
        self.max_waiting_bytes = limits.pending_bytes
        self.max_body_bytes = frames.room_for_body(hub.settings.max_frame_bytes)
        """The largest body that the client accepts in one frame."""
        self.members: dict[int, Member] = {}
        self.opening: dict[int, tuple[int, int]] = {}
        """Members that are being opened, with the credit in messages and bytes that has arrived for them meanwhile."""
        self.links: dict[tuple[str, str], None] = {}
        self.replies: set[str] = set()
        """Reply topics that the client has proved to be its own."""
        self.topics: dict[str, control.TopicInfo] = {}
        """The topics on which the client publishes, with the last TopicInfo that it was sent for each."""
        self.process = wire.peer.process if hub.settings.shared_memory else 0
        """The process of the client, if it and the hub may open each other's memory; otherwise 0."""
        self.shares = False
        """Whether the hub could open memory of the client."""
        self.maps = False
        """Whether the client could open memory of the hub."""
        self.shared: dict[int, Segment] = {}
        """Segments that the client has not opened yet, by delivery."""
        self._shared_number = 0
        self._segments: WeakSet[Segment] = WeakSet()
        """The segments of the client's memory that the hub holds."""
        self.published = 0
        self.delivered = 0
        self.ended = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the wire has also ended, after sending its remaining output."""
        self._restricted = hub.access.restricts
        self._free = not self._restricted and hub.rates is None
        """Whether its batches are forwarded without checking rules and rates."""
        self._now = asyncio.get_running_loop().time
        self._reading = True
        self._suspected = False
        self._congested: dict[Outlet, None] = {}
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._taken_timer: asyncio.TimerHandle | None = None
        self.hello_timer: asyncio.TimerHandle | None = None

    # Input

    def received(self, batch: Sequence[memoryview]) -> None:
        hub, protocol = self.hub, self.protocol
        now = protocol.active_at = self._now()
        protocol.yields = now < hub.urgent_until
        hub.turn_begin(lone=len(batch) == 1)
        try:
            for frame in batch:
                opened = protocol.receive(frame)
                try:
                    if isinstance(opened, tuple):
                        self._publish(opened[0], bytes(opened[1]))
                    elif type(opened) is SharedPublish:
                        self._publish_shared(opened.head, opened.payload)
                    elif opened is not None:
                        self._control(opened)
                    elif not self.ended:
                        hub.counts["malformed"] += 1
                        self._react()
                except Exception:
                    # An error in one session must not affect the others.
                    log.exception("the hub failed to process a frame of %s", self.name or self.wire.peer.address)
                    hub.counts["internal_errors"] += 1
                    protocol.fail(frame)
                    self._react()
        finally:
            hub.turn_end()

    def broken(self, error: ProtocolError) -> None:
        self.hub.counts["malformed"] += 1
        self.protocol.refuse(error)
        self.end(error.text)

    def _control(self, message: control.Control) -> None:
        if self.hub.tracing:
            self.hub.trace(self, "in", message)
        self.hub.answers.take(self, message)

    def can_open(self, probe: control.Probe) -> bool:
        """Whether the memory of its process can be opened from here."""
        try:
            Segment.open(self.process, probe.descriptor, probe.size, probe.token)
        except ProtocolError as error:
            log.debug("%s does not use shared memory: %s", self.name, error.text)
            return False
        return True

    def _publish_shared(self, head: PublishHead, payload: SharedPayload) -> None:
        try:
            if not self.shares:
                raise ProtocolError("memory", "shared memory was not agreed on in HELLO and WELCOME")
            if payload.size > frames.room_for_body(self.hub.settings.max_frame_bytes):
                raise ProtocolError("too_large", f"a payload of {payload.size:,} bytes would not fit a frame")
            segment = Segment.open(self.process, payload.descriptor, payload.size, payload.token)
        except ProtocolError as error:
            self.hub.counts["malformed"] += 1
            self.protocol.refuse(error, head.number)
            self._react()
            return
        self.hub.counts["shared"] += 1
        body = SharedBody(payload.envelope, segment, payload.size)
        if len(self._segments) >= MAX_SEGMENTS:
            self._publish(head, body.whole())
            return
        self._segments.add(segment)
        self._publish(head, body)

    def _publish(self, head: PublishHead, data: BatchBody) -> None:
        hub, protocol = self.hub, self.protocol
        if head.priority >= HIGH:
            hub.urgent_until = protocol.active_at + URGENT_S
        if self._free:
            protocol.passing = head.number
            first = hub.publish_straight(head, data, self.origin)
            protocol.passing = -1
            if first:
                self.published += head.count
                protocol.confirm(head.number, first, head.count, urgent=head.urgent)
                if self._taken_timer is None or protocol.taken_due:
                    self._confirmed()
                return
        batch = Batch(self, head, data, self.origin)
        protocol.accept(batch)
        self.published += head.count
        if self._restricted and not self._may_be_answered(batch):
            batch.done()
        else:
            hub.publish(self, batch)
        if hub.rates is not None and not protocol.throttled:
            wait_s = hub.rates.charge(self.identity, head.count, hub.now())
            if wait_s > 0:
                protocol.throttle()
                asyncio.get_running_loop().call_later(wait_s, self._unthrottle)
        if protocol.reading is not self._reading:
            self._apply_reading()

    def _may_be_answered(self, batch: Batch) -> bool:
        """Whether the client may publish on the `reply_to` topics of its messages.

        Others must not publish there on its behalf.
        """
        try:
            for topic in columns.reply_topics(batch.envelope):
                if not self.may(Action.PUBLISH, topic):
                    text = f"{self.identity} may not name {topic} in reply_to, because it may not publish there"
                    batch.fail(-1, "forbidden", text)
        except InvalidTopic as error:
            batch.fail(-1, "invalid_topic", f"reply_to: {error}")
        except InvalidPayload as error:
            batch.fail(-1, "malformed", str(error))
        if batch.failures:
            self.hub.counts["forbidden"] += 1
        return not batch.failures

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Count `size` bytes as pending. Beyond the limit, the hub does not read from the client."""
        self.protocol.hold(size)
        self._apply_reading()
        try:
            yield
        finally:
            self.protocol.release(size)
            self._apply_reading()

    def _unthrottle(self) -> None:
        self.protocol.unthrottle()
        self._apply_reading()

    def _apply_reading(self) -> None:
        reading = self.protocol.reading
        if reading is not self._reading and not self.ended:
            self._reading = reading
            if reading:
                self.wire.resume()
            else:
                self.wire.pause()

    def _react(self) -> None:
        """Apply the state of the protocol after an event."""
        if self.protocol.ended:
            self._close()
        else:
            self.hub.touch(self)
            self._apply_reading()

    def withdraw(self, number: int, reason: str) -> None:
        pending = self.protocol.pending.get(number)
        if pending is not None:
            self.hub.broker.withdraw(pending[0], reason or "its publisher was cancelled while waiting for room")

    def settled(self, batch: Batch) -> None:
        """Called when a batch has its outcome, which TAKEN reports to the client."""
        protocol = self.protocol
        if not protocol.settle(batch):
            return
        if protocol.reading is not self._reading:
            self._apply_reading()
        self._confirmed()

    def _confirmed(self) -> None:
        if self.protocol.taken_due:
            self.hub.touch(self)
        elif self._taken_timer is None:
            # A delayed TAKEN covers all of them, which saves a frame for each request.
            self._taken_timer = asyncio.get_running_loop().call_later(TAKEN_S, self._report_taken)

    def _report_taken(self) -> None:
        self._taken_timer = None
        self.protocol.report()
        if self.protocol.taken_due:
            self.hub.touch(self)
        elif self.protocol.taken_joins:
            self._taken_timer = asyncio.get_running_loop().call_later(JOIN_S, self._report_taken)

    # Output

    def send(self, message: control.Control) -> None:
        self.protocol.send(message)
        self.hub.touch(self)

    @property
    def full(self) -> bool:
        # The backlog is computed only if it is needed.
        protocol = self.protocol
        return protocol.congested and protocol.shrunk(self.wire.backlog)

    def deliver(self, head: DeliverHead, body: BatchBody) -> None:
        self.delivered += head.count
        frame = self._shared_frame(head, body) if type(body) is SharedBody else frames.deliver(head, body)
        if self.hub.straight and self.protocol.clear:
            # Sent first, so that the subscriber works in parallel.
            self._send((frame,))
            return
        self.protocol.deliver(frame)
        self.hub.touch(self)

    def _shared_frame(self, head: DeliverHead, body: SharedBody) -> frames.Parts:
        segment = body.segment
        if segment is None or not self.maps:
            return frames.deliver(head, body.whole())
        self._shared_number += 1
        self.shared[self._shared_number] = segment
        named = SharedPayload(segment.descriptor, segment.size, segment.token, body.envelope, self._shared_number)
        return frames.deliver_shared(head, named)

    def deliver_some(self, subscription: int, topic: str, seqs: list[int], body: BatchBody) -> None:
        # Messages of another priority are in another order.
        consecutive = seqs == list(range(seqs[0], seqs[0] + len(seqs)))
        head = DeliverHead(subscription, seqs[0], topic, len(seqs), None if consecutive else seqs)
        self.deliver(head, body)

    def count_dropped(self, count: int) -> None:
        self.hub.counts["dropped"] += count

    def send_dropped(self, dropped: control.Dropped) -> None:
        if self.protocol.congested:
            self.protocol.shrunk(self.wire.backlog)
        self.protocol.notify(dropped)
        self.hub.touch(self)

    def congested(self, outlet: Outlet) -> None:
        self._congested[outlet] = None

    async def drained(self) -> None:
        if self.full and not self.ended:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drain_waiters.append(waiter)
            await waiter

    def writable(self) -> None:
        self.hub.turn_begin()
        try:
            self.protocol.drained(self.wire.backlog)
            self.hub.touch(self)
            # The highest priority of all of them first; among equals, the outlet that has waited longest.
            congested, self._congested = list(self._congested), {}
            for level in sorted({level for outlet in congested for level in outlet.levels}, reverse=True):
                for outlet in congested:
                    outlet.pump(level)
            if not self.full:
                self._wake_drain_waiters()
        finally:
            self.hub.turn_end()
        self._apply_reading()

    def _wake_drain_waiters(self) -> None:
        for waiter in self._drain_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._drain_waiters.clear()

    def flush(self) -> None:
        """Send the output of an iteration. Called at its end."""
        out = self.protocol.flush()
        if not out:
            return
        if self.hub.tracing:
            self._trace(out)
        self._send(out)

    def _send(self, out: Sequence[frames.Parts]) -> None:
        protocol = self.protocol
        wire = self.wire
        wire.send(out)
        protocol.flushed(wire.backlog)
        if protocol.congested:
            if protocol.overrun:
                self.hub.counts["cut_off"] += 1
                self.wire.abort()
                self._leave()
            elif protocol.reading is not self._reading:
                self._apply_reading()
        elif self._congested or self._drain_waiters or protocol.has_notices:
            # Everything was sent at once, so the transport will not call `writable`.
            asyncio.get_running_loop().call_soon(self.writable)

    def _trace(self, out: Sequence[frames.Parts]) -> None:
        for frame in out:
            if frame[0][0] == frames.Kind.CONTROL:
                self.hub.trace(self, "out", control.read_from_hub(frame[0][1:]))

    # Rights

    def require(self, action: Action, pattern: str) -> None:
        """Raises ProtocolError if the rules do not allow it."""
        if not self.may(action, pattern):
            raise ProtocolError(
                "forbidden", f"{self.identity} may not {action.value} on {pattern}: the hub has no rule for it"
            )

    def may(self, action: Action, pattern: str) -> bool:
        return self.hub.access.may(self.identity, action, pattern, self.replies)

    # Time

    def tick(self, now: float) -> None:
        protocol = self.protocol
        protocol.tick(now, self.wire.backlog)
        if protocol.suspected is not self._suspected and not protocol.ended:
            self._suspected = protocol.suspected
            self.hub.directory.suspected(self, self._suspected)
            if self._suspected:
                log.warning("%s has sent nothing for %.1f s", self.name, now - protocol.active_at)
        self._react()
        if protocol.ended:
            self.wire.abort()

    def hello_missing(self) -> None:
        self.protocol.hello_missing(self.hub.settings.hello_s)
        self._react()

    # The end

    def end(self, reason: str) -> None:
        """Send GOODBYE, and close the connection."""
        self.protocol.end(reason)
        self._close()

    def lost(self, why: str) -> None:
        self.gone.set_result(None)
        self.protocol.close(why)
        self._leave()

    def _close(self) -> None:
        if not self.ended:
            self.flush()
            self.wire.close()
            self._leave()

    def _leave(self) -> None:
        if self.ended:
            return
        self.ended = True
        # Timers would keep a reference to the session until they are due.
        for timer in (self._taken_timer, self.hello_timer):
            if timer is not None:
                timer.cancel()
        self._wake_drain_waiters()
        self.shared.clear()
        try:
            self.hub.left(self, self.protocol.reason)
        except TrunklineError:
            log.exception("%s disconnected, and not all of its state could be removed", self.name)
