"""The client's side of the protocol, as a state machine without sockets, clock or futures.

Each event method returns the resulting actions in order. Perform each action before requesting the next one: frames
from the same read of a socket may depend on it. Arriving batches are passed to a callback instead, because there are
many of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from trunkline.errors import HubRefused, HubUnavailable, ProtocolError, TrunklineError
from trunkline.wire import control, frames
from trunkline.wire.frames import DeliverHead, Kind, SharedPayload, open_deliver

# Access to an enum attribute takes ten times as long as access to a name of this module.
_CONTROL: Final = int(Kind.CONTROL)
_DELIVER: Final = int(Kind.DELIVER)
_DELIVER_SHARED: Final = int(Kind.DELIVER_SHARED)
SILENT_BEATS = 3
"""A hub that is silent for this many heartbeats is gone."""
BLOCKED_S = 1.0
"""A tick that is late by more than this means that the event loop of this program was blocked."""


class Phase(enum.Enum):
    DISCONNECTED = enum.auto()
    GREETING = enum.auto()
    """HELLO was sent and is not answered yet."""
    LIVE = enum.auto()
    CLOSED = enum.auto()


class SendFrame(NamedTuple):
    frame: bytes


class Welcomed(NamedTuple):
    """The connection is live."""

    welcome: control.Welcome


class Rejected(NamedTuple):
    """The hub rejected this client: end the connection, and pass the error to the callers that wait for it."""

    error: HubRefused | ProtocolError


class Answered(NamedTuple):
    """The request with this number was answered, or failed."""

    number: int
    answer: control.Control | TrunklineError


class Notified(NamedTuple):
    """A control message that is not an answer."""

    message: control.Control


class Malformed(NamedTuple):
    """A frame that was skipped."""

    error: ProtocolError


class Abort(NamedTuple):
    """End the connection at once."""


class Disconnected(NamedTuple):
    """A connection that was live has ended."""

    why: str


class Blocked(NamedTuple):
    """The event loop of this program was blocked.

    The silence of the hub during this time does not mean that it is gone.
    """

    late_s: float


class Reconnect(NamedTuple):
    """There is no connection: connect after a pause."""

    after_s: float
    why: str


Action = SendFrame | Welcomed | Rejected | Answered | Notified | Malformed | Abort | Blocked | Disconnected | Reconnect


class ClientProtocol:
    """One client, across all its successive connections."""

    def __init__(self, url: str, backoff_s: float, max_backoff_s: float) -> None:
        self._url = url
        self.phase = Phase.DISCONNECTED
        self.welcome: control.Welcome | None = None
        """The WELCOME of this connection, or of the previous one."""
        self.last_failure = ""
        """Why there is no connection, or why the last one ended."""
        self.deliver: Callable[[DeliverHead, memoryview], None] = lambda head, body: None
        """Called with each batch that arrives."""
        self.deliver_shared: Callable[[DeliverHead, SharedPayload], None] = lambda head, payload: None
        """Called with each message that arrives with its payload in shared memory."""
        self.sent_at = 0.0
        """When the last frame was sent. Set by the sender of the frame."""
        self.connects = 0
        self.malformed = 0
        self.bytes_in = 0
        self.delivered = 0
        """The number of delivered messages."""
        self._received_at = 0.0
        self._ticked_at = 0.0
        self._last_number = 0
        self._hello = 0
        self._unanswered: set[int] = set()
        self._ending = ""
        """The reason why this connection ends, if it is known before the end."""
        self._backoff_s = self._pause_s = min(backoff_s, max_backoff_s)
        self._max_backoff_s = max_backoff_s

    # Requests

    def ask(self, make: Callable[[int], control.Control]) -> tuple[int, bytes]:
        """Register a request. Returns its number, which the answer carries, and the frame to send."""
        self._last_number += 1
        number = self._last_number
        self._unanswered.add(number)
        return number, frames.control(control.write(make(number)))

    def forget(self, number: int) -> None:
        """Forget a request whose caller no longer waits for the answer."""
        self._unanswered.discard(number)

    # Events

    def connected(self, hello: Callable[[int], control.Hello], now: float) -> Iterator[Action]:
        """Called when a connection was made. Sends HELLO first."""
        self.phase = Phase.GREETING
        self._ending = ""
        self._received_at = now
        self._hello, frame = self.ask(hello)
        yield SendFrame(frame)

    def unreachable(self, why: str, chance: float) -> Iterator[Action]:
        """Called when no connection could be made, because there was no answer at the address."""
        self.last_failure = why
        if self.phase is not Phase.CLOSED:
            yield self._reconnect(chance)

    def received(self, batch: Sequence[memoryview], now: float) -> Iterable[Action]:
        """Called when frames have arrived."""
        self._received_at = now
        for place, frame in enumerate(batch):
            # Avoids a generator while only valid batches arrive: those produce no actions.
            try:
                if not frame or frame[0] != _DELIVER:
                    return self._received(batch[place:])
                head, body = open_deliver(frame)
            except ProtocolError:
                return self._received(batch[place:])
            self.bytes_in += len(frame)
            self.delivered += head.count
            self.deliver(head, body)
        return ()

    def _received(self, batch: Sequence[memoryview]) -> Iterator[Action]:
        for frame in batch:
            self.bytes_in += len(frame)
            try:
                kind = frame[0] if frame else 0
                if kind == _DELIVER:
                    head, body = open_deliver(frame)
                    self.delivered += head.count
                    self.deliver(head, body)
                elif kind == _DELIVER_SHARED:
                    head, payload = frames.open_deliver_shared(frame)
                    self.delivered += head.count
                    self.deliver_shared(head, payload)
                elif kind == _CONTROL:
                    yield from self._control(control.read_from_hub(frame[1:]))
                else:
                    raise ProtocolError("unknown_kind", f"unknown kind of frame {kind}")
            except ProtocolError as error:
                self.malformed += 1
                yield Malformed(error)

    def broken(self, error: ProtocolError) -> Iterator[Action]:
        """Called when the incoming data can no longer be split into frames."""
        self.malformed += 1
        yield from self.give_up(f"the hub sent an invalid frame: {error.text}")

    def give_up(self, why: str) -> Iterator[Action]:
        """End this connection. Another one is made after it has ended."""
        self._ending = why
        yield Abort()

    def tick(self, now: float) -> Iterator[Action]:
        """Check for silence, and send a heartbeat if needed.

        Call it every half heartbeat while the connection is live.
        """
        if self.phase is Phase.LIVE and self.welcome is not None:
            late_s = self._late_s(now)
            self._ticked_at = now
            if late_s > BLOCKED_S:
                yield Blocked(late_s)
                # Frames that the hub has sent meanwhile are not read yet.
                self._received_at = max(self._received_at, now - self.welcome.heartbeat_s / 2)
            silent_s = now - self._received_at
            if silent_s > SILENT_BEATS * self.welcome.heartbeat_s:
                yield from self.give_up(f"the hub was silent for {silent_s:.0f} s")
            elif now - self.sent_at > self.welcome.heartbeat_s / 2:
                yield SendFrame(frames.control(control.write(control.Heartbeat())))

    def _late_s(self, now: float) -> float:
        """How late the next tick is, in seconds."""
        return now - self._ticked_at - self.welcome.heartbeat_s / 2 if self.welcome is not None else 0.0

    def lost(self, why: str, chance: float) -> Iterator[Action]:
        """Called when the connection has ended, from either side.

        `chance`, from 0 to 1, spreads reconnections in time.
        """
        if self.phase is Phase.CLOSED:
            return
        was, self.phase = self.phase, Phase.DISCONNECTED
        self.last_failure = self._ending or why
        yield from self._fail_asked()
        if was is Phase.LIVE:
            yield Disconnected(self.last_failure)
        yield self._reconnect(chance)

    def close(self) -> Iterator[Action]:
        """Close the connection permanently."""
        was, self.phase = self.phase, Phase.CLOSED
        if was in (Phase.GREETING, Phase.LIVE):
            yield SendFrame(frames.control(control.write(control.Goodbye())))
        self.last_failure = "the connection was closed"
        yield from self._fail_asked()

    # Control messages

    def _control(self, message: control.Control) -> Iterator[Action]:
        number = getattr(message, "re", 0)
        if number in self._unanswered:
            self._unanswered.remove(number)
            if number == self._hello:
                yield self._greeted(message)
            elif isinstance(message, control.Error):
                yield Answered(number, HubRefused(message.code, message.text, message.details))
            else:
                yield Answered(number, message)
                if isinstance(message, control.TopicInfo):
                    yield Notified(message)
            return
        if isinstance(message, control.Goodbye):
            self._ending = message.reason or "the hub closed the connection"
            if self.phase is Phase.LIVE and (late_s := self._late_s(self._received_at)) > BLOCKED_S:
                self._ticked_at = self._received_at
                yield Blocked(late_s)
        yield Notified(message)

    def _greeted(self, message: control.Control) -> Action:
        if isinstance(message, control.Welcome):
            self.phase = Phase.LIVE
            self.welcome = message
            self._ticked_at = self._received_at
            self.connects += 1
            self.last_failure = ""
            self._pause_s = self._backoff_s
            return Welcomed(message)
        if isinstance(message, control.Error):
            text = message.text
            if message.code == "version":
                text += f"; this client speaks version {', '.join(map(str, control.VERSIONS))}: update the older side"
            error: HubRefused | ProtocolError = HubRefused(message.code, text, message.details)
        else:
            error = ProtocolError("malformed", f"the hub answered HELLO with {type(message).__name__}")
        self._ending = str(error)
        return Rejected(error)

    def _fail_asked(self) -> Iterator[Action]:
        unanswered, self._unanswered = self._unanswered, set()
        for number in sorted(unanswered):
            yield Answered(number, HubUnavailable(self._url, self.last_failure))

    def _reconnect(self, chance: float) -> Reconnect:
        pause_s = self._pause_s
        self._pause_s = min(self._max_backoff_s, 2 * pause_s)
        return Reconnect(pause_s * (0.5 + chance / 2), self.last_failure)
