"""The connection to a hub: opened on first use, shared by everything in an event loop, opened again when it is lost.

The protocol in wire/client.py makes the decisions; sockets, timers and futures are here. The outbox and the feeds
process published and delivered messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.brokers.hub.shared_memory import SharedMemory
from trunkline.clock import World
from trunkline.errors import HubRefused, HubUnavailable, JournalError, ProtocolError, TrunklineError, UsageError
from trunkline.transports.schemes import transport_for
from trunkline.transports.transport import Frame, Wire
from trunkline.wire import client, control, frames
from trunkline.wire.client import ClientProtocol, Phase
from trunkline.wire.control import VERSIONS

log = logging.getLogger("trunkline.connection")

CLOSE_S = 1.0
"""How long closing waits for the last frames to leave."""

Answer = control.Control | TrunklineError


class EmbeddedHub(Protocol):
    """A hub that can be started in this process."""

    has_journal: bool

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...


class ConnectionUser(Protocol):
    """A part of the client that uses the connection."""

    def connected(self, welcome: control.Welcome) -> None:
        """Called when the hub has sent WELCOME, for the first time or again."""

    def disconnected(self) -> None:
        """Called when the connection has ended. The client reconnects."""


class Connection:
    def __init__(self, url: str, name: str, world: World, settings: ConnectionSettings) -> None:
        self.url = url
        self.name = name
        self.world = world
        self.settings = settings
        self.protocol = ClientProtocol(url, settings.backoff_s, settings.max_backoff_s)
        self.origin = world.random.getrandbits(52) + 1
        """The hub recognises this client by it after a reconnection. It is not shown to others."""
        self.users: list[ConnectionUser] = []
        self.arrived: Callable[[], None] = lambda: None
        """Called when all frames of one read are delivered."""
        """Called in this order."""
        self.listeners: dict[type[control.Control], Callable[..., None]] = {}
        """The receivers of control messages that are not answers."""
        self.memory = SharedMemory(settings, world)
        self.embedded: EmbeddedHub | None = None
        """The hub that is started in this process if no hub answers."""
        self.bytes_out = 0
        self._wire: Wire | None = None
        self._loop: asyncio.AbstractEventLoop
        """The event loop in which the connection was opened.

        Before Python 3.12, `get_running_loop` makes a system call.
        """
        self._task: asyncio.Task[None] | None = None
        self._answers: dict[int, Callable[[Answer], None]] = {}
        self._out: list[Frame] = []
        self._scheduled = False
        self._deferred: list[control.Taken] = []
        """Work that can wait until the receivers of messages have run: see `_defer`."""
        self._waiting: list[asyncio.Future[control.Welcome]] = []
        self._greeted: asyncio.Event
        """Set when HELLO was answered, or can no longer be answered."""
        self._ended: asyncio.Event
        self._pause_s = 0.0
        self._logged = ""
        """The logged reason why there is no connection."""

    @property
    def live(self) -> bool:
        """Whether a hub has sent WELCOME on the current connection."""
        return self.protocol.phase is Phase.LIVE

    @property
    def closed(self) -> bool:
        return self.protocol.phase is Phase.CLOSED

    @property
    def welcome(self) -> control.Welcome | None:
        """The last WELCOME of the hub."""
        return self.protocol.welcome

    @property
    def connects(self) -> int:
        """The number of connections made."""
        return self.protocol.connects

    @property
    def last_failure(self) -> str:
        return self.protocol.last_failure

    @property
    def hub_process(self) -> int:
        """The hub's process, if that is on this host and of this user; otherwise 0."""
        return self._wire.peer.process if self._wire is not None else 0

    @property
    def backlog(self) -> int:
        return self._wire.backlog if self._wire is not None else 0

    # Lifecycle

    def open(self) -> None:
        """Start connecting, unless that is already done. Never waits."""
        if self._task is None and not self.closed:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._run())

    async def ready(self, timeout_s: float | None = None) -> control.Welcome:
        """Wait for WELCOME; raises HubUnavailable, or HubRefused if the hub refuses this client."""
        self.open()
        if self.protocol.phase is Phase.LIVE and self.welcome is not None:
            return self.welcome
        if self.closed:
            raise HubUnavailable(self.url, "the connection is closed")
        waiter: asyncio.Future[control.Welcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self.settings.connect_s if timeout_s is None else timeout_s):
                return await waiter
        except TimeoutError:
            raise HubUnavailable(self.url, self.last_failure or "it does not answer") from None

    async def aclose(self) -> None:
        """Send GOODBYE, and return when all frames are sent, or after CLOSE_S.

        Closing twice is allowed, and so is closing a connection that was never opened.
        """
        if self.closed:
            return
        wire = self._wire
        self._perform(self.protocol.close())
        if wire is not None:
            self.flush()
            wire.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_waiting(HubUnavailable(self.url, "the connection was closed"))
        self.memory.close()
        if wire is not None:
            await self._part(wire)
        if self.embedded is not None:
            await self.embedded.aclose()

    async def _part(self, wire: Wire) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._ended.wait()
        except TimeoutError:
            log.warning("the hub at %s did not read the last frames before the connection was closed", self.url)
        finally:
            wire.abort()

    async def _run(self) -> None:
        while True:
            self._greeted, self._ended = asyncio.Event(), asyncio.Event()
            wire: Wire | None = None
            try:
                async with asyncio.timeout(self.settings.connect_s):
                    wire = await self._reach()
                    if not self._ended.is_set():
                        self._wire = wire
                        self._perform(self.protocol.connected(self._hello, asyncio.get_running_loop().time()))
                        self.flush()
                        await self._greeted.wait()
            except (OSError, ProtocolError, TimeoutError, JournalError, UsageError) as error:
                self._failed(error)
            if wire is not None:
                await self._stay()
            await asyncio.sleep(self._pause_s)

    async def _reach(self) -> Wire:
        try:
            return await self._connect()
        except OSError:
            if self.embedded is None:
                raise
            await self.embedded.start()
            return await self._connect()

    async def _connect(self) -> Wire:
        transport = transport_for(self.url, self.settings.keys)
        return await transport.connect(self.url, lambda _: self, max_frame_bytes=self.settings.max_frame_bytes)

    def _hello(self, number: int) -> control.Hello:
        return control.Hello(
            id=number,
            versions=list(VERSIONS),
            name=self.name,
            library="trunkline",
            origin=self.origin,
            token=self.world.uuid7(),
            at_ns=self.world.time_ns(),
            max_frame_bytes=self.settings.max_frame_bytes,
            memory=self.memory.offer() if self.hub_process else None,
        )

    def _failed(self, error: Exception) -> None:
        """Handle a connection that could not be made, or on which the hub did not answer."""
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        if isinstance(error, JournalError | UsageError):
            # There is no journal to start a hub with, or a part is missing: waiting longer does not help.
            self._fail_waiting(error)
            self._logged = text
        if self._wire is not None:
            self._perform(self.protocol.give_up(text))
        else:
            self._perform(self.protocol.unreachable(text, self.world.random.random()))

    async def _stay(self) -> None:
        """Wait until the connection ends."""
        loop = asyncio.get_running_loop()
        while not self._ended.is_set():
            try:
                async with asyncio.timeout(self.welcome.heartbeat_s / 2 if self.welcome is not None else None):
                    await self._ended.wait()
            except TimeoutError:
                self._perform(self.protocol.tick(loop.time()))

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)

    # Actions of the protocol

    def _defer(self, taken: control.Taken) -> None:
        """Process confirmations after the messages of this iteration.

        Settling each of many requests takes as long as a request. Confirmations are still processed before any later
        message of the hub, and before the end of the connection.
        """
        self._deferred.append(taken)
        if len(self._deferred) == 1:
            self._loop.call_soon(self._perform_deferred)

    def _perform_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for taken in deferred:
            if (listener := self.listeners.get(control.Taken)) is not None:
                listener(taken)

    def _perform(self, actions: Iterable[client.Action]) -> None:
        for action in actions:
            if type(action) is client.Notified and type(action.message) is control.Taken:
                self._defer(action.message)
                continue
            if self._deferred:
                self._perform_deferred()
            match action:
                case client.Answered(number, answer):
                    if (done := self._answers.pop(number, None)) is not None:
                        done(answer)
                case client.Notified(message):
                    if isinstance(message, control.Error):
                        log.warning("the hub at %s reports an error: %s", self.url, message.text)
                    if (listener := self.listeners.get(type(message))) is not None:
                        listener(message)
                case client.SendFrame(frame):
                    self._send_frame((frame,))
                case client.Welcomed(welcome):
                    self._welcomed(welcome)
                case client.Rejected(error):
                    log.warning("the hub at %s refuses this client: %s", self.url, error)
                    if isinstance(error, HubRefused):
                        self._fail_waiting(error)
                    self._abort()
                case client.Malformed(error):
                    log.warning("the hub at %s sent a bad frame: %s", self.url, error)
                case client.Abort():
                    self._abort()
                case client.Blocked(late_s):
                    log.warning(
                        "the event loop of this program was blocked for %.1f s, and could not answer the hub at %s: "
                        "run blocking calls with asyncio.to_thread, or in a handler that is a plain def",
                        late_s,
                        self.url,
                    )
                case client.Disconnected(why):
                    log.warning("the connection to the hub at %s ended: %s", self.url, why)
                    self._logged = why
                    for user in self.users:
                        user.disconnected()
                case client.Reconnect(after_s, why):
                    self._pause_s = after_s
                    if why != self._logged:
                        # Logged once, not at every attempt.
                        log.warning("no hub at %s: %s; retrying", self.url, why)
                        self._logged = why

    def _abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()

    def _welcomed(self, welcome: control.Welcome) -> None:
        if self._logged:
            log.info("connected to the hub at %s", self.url)
            self._logged = ""
        for user in self.users:
            user.connected(welcome)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(welcome)
        self._greeted.set()

    # Sending

    async def ask(self, make: Callable[[int], control.Control]) -> control.Control:
        """Send a request and return the answer.

        Raises HubRefused if it is an error, HubUnavailable if there is no hub.
        """
        await self.ready()
        answer: asyncio.Future[control.Control] = asyncio.get_running_loop().create_future()

        def done(outcome: Answer) -> None:
            if answer.done():
                return
            if isinstance(outcome, TrunklineError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        number = self.ask_soon(make, done)
        self.flush()
        try:
            return await answer
        finally:
            self.protocol.forget(number)
            self._answers.pop(number, None)

    def ask_soon(self, make: Callable[[int], control.Control], done: Callable[[Answer], None] | None = None) -> int:
        """Send a request on a live connection, without waiting for the answer. Returns the number of the request."""
        number, frame = self.protocol.ask(make)
        if done is not None:
            self._answers[number] = done
        self._send_frame((frame,))
        return number

    async def sync(self) -> int:
        """Return when the hub has processed everything that was sent before. Returns the number of its last message."""
        beat = await self.ask(lambda number: control.Heartbeat(id=number))
        assert isinstance(beat, control.Beat)
        return beat.last

    def send(self, message: control.Control) -> None:
        """Send at the end of the iteration, with other frames. Without a connection it is discarded."""
        self._send_frame((frames.control(control.write(message)),))

    def queue(self, frame: Frame) -> None:
        """Send with the next `flush`, which the caller triggers."""
        if self._wire is not None:
            self._out.append(frame)

    def _send_frame(self, frame: Frame) -> None:
        if self._wire is not None:
            self._out.append(frame)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._scheduled = False
        if self._out and self._wire is not None:
            out, self._out = self._out, []
            for frame in out:
                self.bytes_out += len(frame[0]) if len(frame) == 1 else sum(map(len, frame))
            self.protocol.sent_at = self._loop.time()
            self._wire.send(out)

    def send_now(self, frame: bytes) -> None:
        """Send a frame, after those that are queued."""
        if self._wire is None:
            return
        if self._out:
            self._out.append((frame,))
            self.flush()
            return
        self.bytes_out += len(frame)
        self.protocol.sent_at = self._loop.time()
        self._wire.send(((frame,),))

    # Called by the transport

    def received(self, batch: Sequence[memoryview]) -> None:
        actions = self.protocol.received(batch, self._loop.time())
        # Handlers of the first messages run first: later frames of the hub are read while their answers are in transit.
        self.arrived()
        if actions:
            self._perform(actions)
            self.arrived()

    def broken(self, error: ProtocolError) -> None:
        self._perform(self.protocol.broken(error))

    def writable(self) -> None:
        for user in self.users:
            if (writable := getattr(user, "writable", None)) is not None:
                writable()

    def lost(self, why: str) -> None:
        self._wire = None
        self._out.clear()
        self._perform(self.protocol.lost(why, self.world.random.random()))
        self._ended.set()
        self._greeted.set()
