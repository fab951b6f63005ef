"""The hub's side of the protocol, as a state machine without I/O, clock or event loop.

Frames, times and the size of the transport's backlog are passed in by method calls. Results are returned, or are state:
`flush` returns the frames to send, `reading` is whether to read, `ended` and `reason` are whether and why the
connection is over, `taken_due` is whether a flush is due. For a data frame no objects are made except its head.
"""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from trunkline.errors import ProtocolError
from trunkline.wire import control, frames
from trunkline.wire.frames import Kind, Parts, PublishHead, SharedPublish
from trunkline.wire.notices import Notices

MAX_CONTROL_BYTES: Final = 16 * 1024 * 1024
JOIN_BATCHES: Final = 32
"""TAKEN for this many batches is sent with the next frame to their publisher. If it waited for the timer, there would
be 300 batches. Settling those takes a client longer than a request, and keeping them causes work for Python's garbage
collector."""
PAUSE_FACTOR: Final = 4
"""The hub stops reading from a client while the backlog exceeds this many times `congested_bytes`."""
# Access to an enum attribute takes ten times as long as access to a name of this module.
_CONTROL: Final = int(Kind.CONTROL)
_PUBLISH: Final = int(Kind.PUBLISH)
_PUBLISH_SHARED: Final = int(Kind.PUBLISH_SHARED)


class ServerLimits(NamedTuple):
    pending_bytes: int
    """The most bytes of batches that are not taken. Beyond this, the hub stops reading from the client."""
    max_frame_bytes: int
    max_malformed: int
    window: int
    heartbeat_s: float
    congested_bytes: int
    """A client with a larger backlog gets no more messages until the backlog has drained."""


class UnconfirmedBatch(Protocol):
    """A batch that was accepted, and is not yet confirmed to its publisher by TAKEN."""

    number: int
    count: int
    first: int
    urgent: bool
    failures: list[control.Failure]

    @property
    def size(self) -> int:
        """Its size in bytes, when it is opened."""


B = TypeVar("B", bound=UnconfirmedBatch)


class ServerProtocol(Generic[B]):
    """One connection. After `ended`, only the frames of the last `flush` are sent."""

    __slots__ = (
        "_backlog_at_tick",
        "_backlogged",
        "_congested_bytes",
        "_failures",
        "_last_number",
        "_limits",
        "_next_seq",
        "_notices",
        "_out",
        "_runs",
        "_throttled",
        "_unreported",
        "_unreported_batches",
        "active_at",
        "backlog",
        "congested",
        "ended",
        "greeted",
        "has_notices",
        "malformed",
        "out_bytes",
        "overrun",
        "passing",
        "pending",
        "pending_bytes",
        "reading",
        "reason",
        "suspected",
        "taken_due",
        "taken_joins",
        "yields",
    )

    def __init__(self, limits: ServerLimits, now: float) -> None:
        self._limits = limits
        self._congested_bytes = limits.congested_bytes
        self.greeted = False
        """Whether HELLO was accepted."""
        self.ended = False
        self.reason = ""
        self.overrun = False
        """Whether the connection ended because the client does not read. The transport must then be aborted."""
        self.malformed = 0
        self.active_at = now
        """When the last frame arrived."""
        self.suspected = False
        self.reading = True
        self._throttled = False
        self._backlogged = False
        self._last_number = -1
        self.pending: dict[int, tuple[B, int]] = {}
        """Batches that are not taken, and their sizes, by number."""
        self.pending_bytes = 0
        self.passing = -1
        """The number of a batch that is being forwarded at once, without becoming pending."""
        self._runs: list[tuple[int, int, int]] = []
        self._failures: list[control.Failure] = []
        self._next_seq = 0
        self._unreported = self._unreported_batches = 0
        """Messages and batches that are taken, and not yet reported to their publisher."""
        self.taken_due = False
        """Whether the next flush sends TAKEN."""
        self.taken_joins = False
        """Whether the next flush that has something else to send sends TAKEN with it."""
        self.yields = False
        """Whether TAKEN asks the client to let other processes run."""
        self._notices = Notices()
        self.has_notices = False
        """Whether notices wait until the client is not congested."""
        self._out: list[Parts] = []
        self.out_bytes = 0
        self.backlog = 0
        """The last known backlog of the transport. Between two flushes it only shrinks."""
        self.congested = False
        self._backlog_at_tick = 0

    # Incoming frames

    def receive(self, frame: memoryview) -> tuple[PublishHead, memoryview] | SharedPublish | control.Control | None:
        """A batch as its head and body, or a control message; None if the frame is refused. Never raises."""
        if self.ended:
            return None
        try:
            kind = frame[0] if frame else 0
            if kind == _PUBLISH:
                if not self.greeted:
                    raise _no_hello()
                opened = frames.open_publish(frame)
                number = opened[0].number
                if number <= self._last_number:
                    raise self._went_back(number)
                self._last_number = number
                return opened
            if kind == _PUBLISH_SHARED:
                if not self.greeted:
                    raise _no_hello()
                shared = frames.open_publish_shared(frame)
                if shared.head.number <= self._last_number:
                    raise self._went_back(shared.head.number)
                self._last_number = shared.head.number
                return shared
            if kind != _CONTROL:
                raise ProtocolError("unknown_kind", f"unknown kind of frame {kind}")
            if len(frame) > MAX_CONTROL_BYTES:
                raise ProtocolError(
                    "too_large", f"a control frame of {len(frame):,} bytes: {MAX_CONTROL_BYTES:,} at most"
                )
            message = control.read_from_client(frame[1:])
            if not self.greeted and not isinstance(message, control.Hello):
                raise _no_hello()
            return message
        except ProtocolError as error:
            self.refuse(error, batch_number(frame))
            return None

    def _went_back(self, number: int) -> ProtocolError:
        return ProtocolError("out_of_order", f"batch {number} after batch {self._last_number}")

    def refuse(self, error: ProtocolError, batch: int = -1) -> None:
        """Answer and count a bad frame. Too many of them, or one before HELLO, end the connection."""
        self.malformed += 1
        self.send(control.Error(code=error.code, text=error.text, batch=batch))
        if not self.greeted or self.malformed > self._limits.max_malformed:
            self.end(f"{self.malformed} bad frames, the last: {error.text}")

    def accept(self, batch: B) -> None:
        """Make a batch pending when it goes to the engine. It is pending until `settle` or `fail`."""
        size = batch.size
        self.pending[batch.number] = (batch, size)
        self.hold(size)

    def settle(self, batch: B) -> bool:
        """Called when the engine is done with a batch.

        Returns False if it is not pending. TAKEN is sent with the next due flush.
        """
        number = batch.number
        pending = self.pending.pop(number, None)
        if pending is None:
            return False
        self.release(pending[1])
        self.confirm(number, batch.first, batch.count, urgent=batch.urgent)
        if batch.failures:
            self._failures += batch.failures
            self.taken_due = True
        return True

    def confirm(self, number: int, first: int, count: int, *, urgent: bool) -> None:
        """Note that a batch is taken, with message numbers from `first` on. It need not have been pending."""
        runs = self._runs
        if first == self._next_seq and runs and runs[-1][1] == number - 1:
            begin, _, seq = runs[-1]
            runs[-1] = (begin, number, seq)
        else:
            runs.append((number, number, first))
        self._next_seq = first + count
        self._unreported += count
        self._unreported_batches += 1
        if urgent or self._unreported * 8 >= self._limits.window:
            self.taken_due = True

    def fail(self, frame: memoryview) -> None:
        """Answer a frame at which the hub itself failed.

        The answer names the batch in the frame, unless that is already answered.
        """
        number = batch_number(frame)
        pending = self.pending.pop(number, None)
        if pending is not None:
            self.pending_bytes -= pending[1]
            self._update_reading()
        text = "the hub failed to handle this frame: read its log for the cause"
        unanswered = pending is not None or number == self.passing
        self.passing = -1
        self.send(control.Error(code="internal", text=text, batch=number if unanswered else -1))

    # Reading

    def hold(self, size: int) -> None:
        """Something of the client waits here until `release`. Above the limit, nothing more is read."""
        self.pending_bytes += size
        if self.pending_bytes > self._limits.pending_bytes:
            self.reading = False

    def release(self, size: int) -> None:
        self.pending_bytes -= size
        if not self.reading:
            self._update_reading()

    def throttle(self) -> None:
        """Stop reading until `unthrottle`, because the client publishes faster than its rate allows."""
        self._throttled = True
        self.reading = False

    def unthrottle(self) -> None:
        self._throttled = False
        self._update_reading()

    @property
    def throttled(self) -> bool:
        return self._throttled

    def _update_reading(self) -> None:
        self._backlogged = self._backlogged and self.congested
        self.reading = not (
            self.ended or self._throttled or self._backlogged or self.pending_bytes > self._limits.pending_bytes
        )

    # Outgoing frames

    def send(self, message: control.Control) -> None:
        """Send a control message. TAKEN for settled batches is sent first, to keep the order of events."""
        if self.ended:
            return
        if self._runs or self._failures:
            self._send_taken()
        self._put(control.write(message))

    def _put(self, data: bytes) -> None:
        self._out.append((frames.control(data),))
        self.out_bytes += 1 + len(data)
        if self.out_bytes + self.backlog > self._congested_bytes:
            self.congested = True

    def deliver(self, frame: Parts) -> None:
        """Send a data frame.

        Notices of messages that were dropped before it are sent first. Otherwise the client would count those as
        missing.
        """
        if self.ended:
            return
        if self.has_notices:
            self._send_notices()
        self._out.append(frame)
        for part in frame:
            self.out_bytes += len(part)
        if self.out_bytes + self.backlog > self._congested_bytes:
            self.congested = True

    def notify(self, dropped: control.Dropped) -> None:
        """Notify the client of dropped messages: at once, or when it is no longer congested."""
        if not self.congested:
            self.send(dropped)
        elif not self.ended:
            self.has_notices = True
            for notice in self._notices.add(dropped):
                self.send(notice)

    def _send_notices(self) -> None:
        self.has_notices = False
        for notice in self._notices.take():
            self.send(notice)

    def report(self) -> None:
        """Called by a timer. At the first call, TAKEN may join the next flush.

        At the second, it is due even without another frame.
        """
        waits = bool(self._runs or self._failures)
        self.taken_due = waits and self.taken_joins
        self.taken_joins = waits

    def _send_taken(self) -> None:
        taken = control.Taken(runs=self._runs, failures=self._failures, yields=self.yields)
        self._runs, self._failures = [], []
        self._unreported = self._unreported_batches = 0
        self.taken_due = self.taken_joins = False
        self._put(control.write(taken))

    def flush(self) -> list[Parts]:
        """The frames to send now, in order."""
        if self.taken_due or (self._out and (self.taken_joins or self._unreported_batches >= JOIN_BATCHES)):
            self._send_taken()
        out, self._out = self._out, []
        self.out_bytes = 0
        return out

    @property
    def clear(self) -> bool:
        """Whether a frame can be sent directly: it would overtake no other, and nothing has to be sent with it."""
        return not (
            self._out
            or self.ended
            or self.has_notices
            or self.taken_due
            or self.taken_joins
            or self._unreported_batches >= JOIN_BATCHES
        )

    def flushed(self, backlog: int) -> None:
        """Called when the transport has accepted the frames of `flush`. `backlog` is its current backlog."""
        self.backlog = backlog
        self.congested = self.out_bytes + backlog > self._congested_bytes
        if not self.congested or self.ended:
            return
        if backlog > self._limits.pending_bytes + self._limits.max_frame_bytes:
            self.overrun = True
            self.close("it does not read from its socket")
        elif backlog > PAUSE_FACTOR * self._congested_bytes:
            # The client does not read the answers, so the hub reads no more requests.
            self._backlogged = True
            self.reading = False

    def shrunk(self, backlog: int) -> bool:
        """Set the current backlog of the transport. Returns whether the client is still congested."""
        self.backlog = backlog
        self.congested = self.out_bytes + backlog > self._congested_bytes
        return self.congested

    def drained(self, backlog: int) -> None:
        """Called when the transport can accept more data. Sends waiting notices, and resumes reading."""
        if not self.shrunk(backlog) and self.has_notices:
            self._send_notices()
        self._update_reading()

    # Time

    def tick(self, now: float, backlog: int) -> None:
        """Check whether the client is silent, and send a heartbeat. Called twice per heartbeat.

        A silent client is suspected. If it is silent for too long, the connection ends.
        """
        before, self._backlog_at_tick = self._backlog_at_tick, backlog
        if not self.reading and (not self._backlogged or backlog < before):
            # The silence means nothing: the hub does not read from the client, and the client still reads.
            self.active_at = now
        silent_s = now - self.active_at
        if silent_s > 3 * self._limits.heartbeat_s:
            self.end(f"silent for {silent_s:.0f} s")
        self.suspected = silent_s > 2 * self._limits.heartbeat_s
        if self.greeted:
            self.send(control.Heartbeat())

    def hello_missing(self, hello_s: float) -> None:
        """End the connection if there was no HELLO. Called after `hello_s`."""
        if not self.greeted and not self.ended:
            self.send(control.Error(code="no_hello", text=f"no HELLO within {hello_s:g} s"))
            self.end("no HELLO")

    # The end

    def end(self, reason: str) -> None:
        """End the connection with GOODBYE, which the next flush returns."""
        if not self.ended:
            self.send(control.Goodbye(reason=reason))
            self._finish(reason)

    def close(self, reason: str) -> None:
        """Close the state after the connection was lost. Nothing more is sent."""
        if not self.ended:
            self._finish(reason)
            self._out.clear()
            self.out_bytes = 0

    def _finish(self, reason: str) -> None:
        self.ended = True
        self.reason = reason
        self.reading = False
        self.taken_due = self.taken_joins = False
        self.pending.clear()
        self.pending_bytes = 0
        self._runs, self._failures = [], []
        self._notices = Notices()
        self.has_notices = False


def _no_hello() -> ProtocolError:
    return ProtocolError("out_of_order", "HELLO comes first")


def batch_number(frame: memoryview) -> int:
    """The number of the batch in a refused frame; -1 if it has none, or the number cannot be read."""
    if len(frame) < frames.PREFIX.size or frame[0] not in (_PUBLISH, _PUBLISH_SHARED):
        return -1
    size = frames.PREFIX.unpack_from(frame)[1]
    try:
        head = msgspec.msgpack.decode(frame[frames.PREFIX.size : frames.PREFIX.size + size], type=list[Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return -1
    return head[0] if head and type(head[0]) is int and head[0] >= 0 else -1
