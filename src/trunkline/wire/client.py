"""The client's side of the protocol as a state machine: events in, actions out. No sockets, no clock, no futures.

Each event returns the actions it leads to, in order. Perform each action before asking for the next one: what follows
in the same read of a socket may depend on it. Batches that arrive are not actions, but a call: there are many of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from trunkline.errors import HubRefused, HubUnavailable, ProtocolError, TrunklineError
from trunkline.wire import control, frames
from trunkline.wire.frames import DeliverHead, Kind, SharedPayload

# An attribute of an enum is looked up ten times as slowly as a name of this module.
_CONTROL: Final = int(Kind.CONTROL)
_DELIVER: Final = int(Kind.DELIVER)
_DELIVER_SHARED: Final = int(Kind.DELIVER_SHARED)
SILENT_BEATS = 3
"""A hub that is silent for this many heartbeats is gone."""
BLOCKED_S = 1.0
"""A tick that comes so much too late means that this program's event loop was blocked."""


class Phase(enum.Enum):
    DISCONNECTED = enum.auto()
    GREETING = enum.auto()
    """HELLO was sent, and is not answered yet."""
    LIVE = enum.auto()
    CLOSED = enum.auto()


class SendFrame(NamedTuple):
    frame: bytes


class Welcomed(NamedTuple):
    """The connection is live."""

    welcome: control.Welcome


class Rejected(NamedTuple):
    """The hub does not want this client: end the connection, and tell those who wait for it."""

    error: HubRefused | ProtocolError


class Answered(NamedTuple):
    """What was asked under this number has its answer, or failed."""

    number: int
    answer: control.Control | TrunklineError


class Notified(NamedTuple):
    """A control message that answers nothing."""

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
    """This program's event loop did not run for so long: that the hub was not heard means nothing."""

    late_s: float


class Reconnect(NamedTuple):
    """There is no connection: make one after a pause."""

    after_s: float
    why: str


Action = SendFrame | Welcomed | Rejected | Answered | Notified | Malformed | Abort | Blocked | Disconnected | Reconnect


class ClientProtocol:
    """One client, over all its connections, which follow each other."""

    def __init__(self, url: str, backoff_s: float, max_backoff_s: float) -> None:
        self._url = url
        self.phase = Phase.DISCONNECTED
        self.welcome: control.Welcome | None = None
        """Of this connection, or of the one before."""
        self.last_failure = ""
        """Why there is no connection, or why the last one ended."""
        self.deliver: Callable[[DeliverHead, memoryview], None] = lambda head, body: None
        """Called with each batch that arrives."""
        self.deliver_shared: Callable[[DeliverHead, SharedPayload], None] = lambda head, payload: None
        """The same, of one whose payload is in shared memory."""
        self.sent_at = 0.0
        """When the last frame was sent: kept by who sends it."""
        self.connects = 0
        self.malformed = 0
        self.bytes_in = 0
        self.delivered = 0
        """Messages."""
        self._received_at = 0.0
        self._ticked_at = 0.0
        self._last_number = 0
        self._hello = 0
        self._unanswered: set[int] = set()
        self._ending = ""
        """Why this connection ends, if that is known before it has ended."""
        self._backoff_s = self._pause_s = min(backoff_s, max_backoff_s)
        self._max_backoff_s = max_backoff_s

    # Asking

    def ask(self, make: Callable[[int], control.Control]) -> tuple[int, bytes]:
        """The number under which the answer comes, and the frame to send."""
        self._last_number += 1
        number = self._last_number
        self._unanswered.add(number)
        return number, frames.control(control.write(make(number)))

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._unanswered.discard(number)

    # Events

    def connected(self, hello: Callable[[int], control.Hello], now: float) -> Iterator[Action]:
        """There is a connection: HELLO comes first."""
        self.phase = Phase.GREETING
        self._ending = ""
        self._received_at = now
        self._hello, frame = self.ask(hello)
        yield SendFrame(frame)

    def unreachable(self, why: str, chance: float) -> Iterator[Action]:
        """There is no connection: nobody answered at the address."""
        self.last_failure = why
        if self.phase is not Phase.CLOSED:
            yield self._reconnect(chance)

    def received(self, batch: Sequence[memoryview], now: float) -> Iterable[Action]:
        """Frames have arrived."""
        self._received_at = now
        for place, frame in enumerate(batch):
            # Without a generator, for as long as nothing but good batches arrives: those are not actions.
            try:
                if not frame or frame[0] != _DELIVER:
                    return self._received(batch[place:])
                head, body = frames.open_deliver(frame)
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
                    head, body = frames.open_deliver(frame)
                    self.delivered += head.count
                    self.deliver(head, body)
                elif kind == _DELIVER_SHARED:
                    head, payload = frames.open_deliver_shared(frame)
                    self.delivered += head.count
                    self.deliver_shared(head, payload)
                elif kind == _CONTROL:
                    yield from self._control(control.read_from_hub(frame[1:]))
                else:
                    raise ProtocolError("unknown_kind", f"no frame is of kind {kind}")
            except ProtocolError as error:
                self.malformed += 1
                yield Malformed(error)

    def broken(self, error: ProtocolError) -> Iterator[Action]:
        """What arrives cannot be cut into frames any more."""
        self.malformed += 1
        yield from self.give_up(f"the hub sent what is no frame: {error.text}")

    def give_up(self, why: str) -> Iterator[Action]:
        """This connection is of no use. Another one is made after it has ended."""
        self._ending = why
        yield Abort()

    def tick(self, now: float) -> Iterator[Action]:
        """Call it every half heartbeat while the connection is live."""
        if self.phase is Phase.LIVE and self.welcome is not None:
            late_s = self._late_s(now)
            self._ticked_at = now
            if late_s > BLOCKED_S:
                yield Blocked(late_s)
                # What the hub has sent meanwhile is still to be read.
                self._received_at = max(self._received_at, now - self.welcome.heartbeat_s / 2)
            silent_s = now - self._received_at
            if silent_s > SILENT_BEATS * self.welcome.heartbeat_s:
                yield from self.give_up(f"the hub was silent for {silent_s:.0f} s")
            elif now - self.sent_at > self.welcome.heartbeat_s / 2:
                yield SendFrame(frames.control(control.write(control.Heartbeat())))

    def _late_s(self, now: float) -> float:
        """By how much the next tick is late."""
        return now - self._ticked_at - self.welcome.heartbeat_s / 2 if self.welcome is not None else 0.0

    def lost(self, why: str, chance: float) -> Iterator[Action]:
        """The connection has ended, whoever ended it. `chance`, from 0 to 1, spreads reconnections in time."""
        if self.phase is Phase.CLOSED:
            return
        was, self.phase = self.phase, Phase.DISCONNECTED
        self.last_failure = self._ending or why
        yield from self._fail_asked()
        if was is Phase.LIVE:
            yield Disconnected(self.last_failure)
        yield self._reconnect(chance)

    def close(self) -> Iterator[Action]:
        """Nobody needs the connection any more."""
        was, self.phase = self.phase, Phase.CLOSED
        if was in (Phase.GREETING, Phase.LIVE):
            yield SendFrame(frames.control(control.write(control.Goodbye())))
        self.last_failure = "the connection was closed"
        yield from self._fail_asked()

    # Deciding

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
            self._ending = message.reason or "the hub said goodbye"
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
