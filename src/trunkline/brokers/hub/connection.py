"""The connection to a hub: opened on first use, shared by everything in an event loop, opened again when it is lost.

It knows the protocol's beginning and end, asks and answers, and signs of life. What is published and what is delivered
is for the outbox and the feeds.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from trunkline.brokers.hub.settings import LinkSettings
from trunkline.clock import World
from trunkline.errors import HubRefused, HubUnavailable, JournalError, ProtocolError, UsageError
from trunkline.transports.schemes import transport_for
from trunkline.transports.transport import Frame, Wire
from trunkline.wire import control, frames
from trunkline.wire.control import VERSIONS
from trunkline.wire.frames import DeliverHead, Kind

log = logging.getLogger("trunkline.link")

CLOSE_S = 1.0
"""So long closing waits for what was said last to leave."""


class State(enum.Enum):
    NEW = enum.auto()
    """Nobody has needed it yet."""
    SEEKING = enum.auto()
    LIVE = enum.auto()
    CLOSED = enum.auto()


class Embedded(Protocol):
    """A hub that can be started in this process."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...


class User(Protocol):
    """A part of the client that lives on the connection."""

    def live(self, welcome: control.Welcome) -> None:
        """The hub has said welcome, for the first time or again."""

    def lost(self) -> None:
        """The connection has ended; another one is sought."""


class Connection:
    def __init__(self, url: str, name: str, world: World, settings: LinkSettings) -> None:
        self.url = url
        self.name = name
        self.world = world
        self.settings = settings
        self.origin = world.random.getrandbits(52) + 1
        """The hub knows this client again by it, after a reconnection. It is never told to others."""
        self.secrets: dict[str, str] = {}
        """Of the reply topics here: the hub lets nobody subscribe to one without its secret."""
        self.state = State.NEW
        self.welcome: control.Welcome | None = None
        self.users: list[User] = []
        """Told in this order."""
        self.deliver: Callable[[DeliverHead, memoryview], None] = lambda head, body: None
        self.heard: dict[type[control.Control], Callable[..., None]] = {}
        """Who is told what the hub says by itself."""
        self.connects = 0
        self.malformed = 0
        self.last_failure = ""
        self.embedded: Embedded | None = None
        """Starts a hub in this process, if nobody answers."""
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked = 0
        self._answers: dict[int, asyncio.Future[control.Control]] = {}
        self._out: list[Frame] = []
        self._scheduled = False
        self._waiting: list[asyncio.Future[None]] = []
        self._ended: asyncio.Event
        self._goodbye = ""
        """Why the hub ended this connection, if it said so."""
        self._heard_at = 0.0
        self._said_at = 0.0
        self.bytes_out = 0
        self.bytes_in = 0
        self.delivered = 0
        """Messages."""

    @property
    def live(self) -> bool:
        """Whether there is a hub that has said welcome."""
        return self.state is State.LIVE

    # Life

    def open(self) -> None:
        """Seek the hub, if nobody does yet. Never waits."""
        if self.state is State.NEW:
            self.state = State.SEEKING
            self._task = asyncio.ensure_future(self._run())

    async def ready(self, timeout_s: float | None = None) -> control.Welcome:
        """Return when the hub has said welcome; raises HubUnavailable, or HubRefused if it does not want us."""
        self.open()
        if self.state is State.LIVE and self.welcome is not None:
            return self.welcome
        if self.state is State.CLOSED:
            raise HubUnavailable(self.url, "the connection is closed")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self.settings.connect_s if timeout_s is None else timeout_s):
                await waiter
        except TimeoutError:
            raise HubUnavailable(self.url, self.last_failure or "it does not answer") from None
        assert self.welcome is not None
        return self.welcome

    async def aclose(self) -> None:
        """Say goodbye, and return when all that was said has left, or after CLOSE_S.

        Closing twice is fine, and so is closing what was never opened.
        """
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        wire = self._wire
        if wire is not None:
            self.say(control.Goodbye())
            self.flush()
            wire.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all(HubUnavailable(self.url, "the connection was closed"))
        if wire is not None:
            await self._part(wire)
        if self.embedded is not None:
            await self.embedded.aclose()

    async def _part(self, wire: Wire) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._ended.wait()
        except TimeoutError:
            log.warning("the hub at %s does not take what was said last", self.url)
        finally:
            wire.abort()

    async def _run(self) -> None:
        pause_s = self.settings.backoff_s
        while self.state is not State.CLOSED:
            try:
                await self._connect()
            except (OSError, ProtocolError, TimeoutError, HubRefused, JournalError, UsageError) as error:
                self._note_failure(error)
            else:
                pause_s = self.settings.backoff_s
                await self._stay()
            await asyncio.sleep(pause_s * (0.5 + self.world.random.random() / 2))
            pause_s = min(self.settings.max_backoff_s, 2 * pause_s)

    def _note_failure(self, error: Exception) -> None:
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        if text != self.last_failure:
            # Once, not at every attempt.
            log.warning("no hub at %s: %s; trying again", self.url, text)
        self.last_failure = text
        if self._wire is not None:
            self._wire.abort()
            self._wire = None
        if isinstance(error, HubRefused | JournalError | UsageError):
            # It does not want us, has no journal to start with, or lacks a part: who waits need not wait longer.
            self._fail_waiting(error)

    async def _connect(self) -> None:
        self._ended = asyncio.Event()
        self._goodbye = ""
        async with asyncio.timeout(self.settings.connect_s):
            try:
                self._wire = await self._reach()
            except OSError:
                if self.embedded is None:
                    raise
                await self.embedded.start()
                self._wire = await self._reach()
            if self._ended.is_set():
                raise ProtocolError("lost", self._goodbye or "the connection was closed")
            answer = await self._ask(
                control.Hello(
                    id=self._next_id(),
                    versions=list(VERSIONS),
                    name=self.name,
                    library="trunkline",
                    origin=self.origin,
                    token=self.world.uuid7(),
                    at=self.world.time_ns() / 1e9,
                    max_frame_bytes=self.settings.max_frame_bytes,
                )
            )
        if not isinstance(answer, control.Welcome):
            raise ProtocolError("malformed", f"the hub answered HELLO with {type(answer).__name__}")
        if self.last_failure or self.connects:
            log.info("connected to the hub at %s", self.url)
        self.welcome = answer
        self.connects += 1
        self.last_failure = ""
        self.state = State.LIVE
        for user in self.users:
            user.live(answer)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _reach(self) -> Wire:
        return await transport_for(self.url, self.settings.keys).connect(
            self.url, lambda _: self, max_frame_bytes=self.settings.max_frame_bytes
        )

    async def _stay(self) -> None:
        """Until the connection ends: say something now and then, and notice when the hub is silent."""
        assert self.welcome is not None
        beat_s = self.welcome.heartbeat_s
        loop = asyncio.get_running_loop()
        while not self._ended.is_set():
            try:
                async with asyncio.timeout(beat_s / 2):
                    await self._ended.wait()
            except TimeoutError:
                now = loop.time()
                if now - self._heard_at > 3 * beat_s:
                    self.last_failure = f"the hub was silent for {now - self._heard_at:.0f} s"
                    assert self._wire is not None
                    self._wire.abort()
                    await self._ended.wait()
                elif now - self._said_at > beat_s / 2:
                    self.say(control.Heartbeat())
        if self.state is not State.CLOSED:
            log.warning("the connection to the hub at %s ended: %s", self.url, self.last_failure)
            self.state = State.SEEKING
        self._wire = None
        self._out.clear()
        self._fail_answers(HubUnavailable(self.url, self.last_failure))
        for user in self.users:
            user.lost()

    def _fail_answers(self, error: Exception) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)

    def _fail_all(self, error: Exception) -> None:
        self._fail_answers(error)
        self._fail_waiting(error)

    # What is said

    def _next_id(self) -> int:
        self._asked += 1
        return self._asked

    async def ask(self, make: Callable[[int], control.Ask]) -> control.Control:
        """Ask, and return the answer; raises HubRefused if it is an error, HubUnavailable if there is no hub."""
        await self.ready()
        return await self._ask(make(self._next_id()))

    def ask_soon(self, make: Callable[[int], control.Ask]) -> asyncio.Future[control.Control]:
        """The same on a connection that is live, without waiting for it."""
        said = make(self._next_id())
        answer = self._expect(said.id)
        self.say(said)
        return answer

    def _expect(self, number: int) -> asyncio.Future[control.Control]:
        answer: asyncio.Future[control.Control] = asyncio.get_running_loop().create_future()
        # Whoever asked may have gone: then nobody else is to hear of an error.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._answers[number] = answer
        return answer

    async def _ask(self, said: control.Ask) -> control.Control:
        answer = self._expect(said.id)
        self.say(said)
        self.flush()
        try:
            return await answer
        finally:
            self._answers.pop(said.id, None)

    async def sync(self) -> int:
        """Return when the hub has taken up everything that was said before: the number of its last message."""
        await self.ready()
        number = self._next_id()
        answer = self._expect(number)
        self.say(control.Heartbeat(id=number))
        self.flush()
        beat = await answer
        assert isinstance(beat, control.Beat)
        return beat.last

    def say(self, said: control.Control) -> None:
        """Without a connection it is not said."""
        self.send((frames.control(control.write(said)),))

    def queue(self, frame: Frame) -> None:
        """With the next `flush`, which the caller sees to."""
        if self._wire is not None:
            self._out.append(frame)

    def send(self, frame: Frame) -> None:
        """At the end of the turn, with what else there is."""
        if self._wire is not None:
            self._out.append(frame)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._scheduled = False
        if self._out and self._wire is not None:
            out, self._out = self._out, []
            for frame in out:
                for part in frame:
                    self.bytes_out += len(part)
            self._said_at = asyncio.get_running_loop().time()
            self._wire.send(out)

    @property
    def backlog(self) -> int:
        return self._wire.backlog if self._wire is not None else 0

    # What is heard

    def received(self, batch: Sequence[memoryview]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        for frame in batch:
            self.bytes_in += len(frame)
            try:
                if frame[0] == Kind.DELIVER:
                    head, body = frames.open_deliver(frame)
                    self.delivered += head.count
                    self.deliver(head, body)
                elif frame[0] == Kind.CONTROL:
                    self._hear(control.read_from_hub(frame[1:]))
                else:
                    raise ProtocolError("unknown_kind", f"no frame is of kind {frame[0]}")
            except ProtocolError as error:
                self.malformed += 1
                log.warning("the hub at %s sent a bad frame: %s", self.url, error)

    def broken(self, error: ProtocolError) -> None:
        self.malformed += 1
        self.last_failure = f"the hub sent what is no frame: {error.text}"
        if self._wire is not None:
            self._wire.abort()

    def _hear(self, said: control.Control) -> None:
        number = getattr(said, "re", 0)
        answer = self._answers.pop(number, None) if number else None
        if answer is not None:
            if answer.done():
                return
            if isinstance(said, control.Error):
                answer.set_exception(HubRefused(said.code, said.text, said.details))
            else:
                answer.set_result(said)
                if isinstance(said, control.TopicInfo):
                    self.heard[control.TopicInfo](said)
            return
        if isinstance(said, control.Goodbye):
            self.last_failure = self._goodbye = said.reason or "the hub said goodbye"
        elif isinstance(said, control.Error):
            log.warning("the hub at %s complains: %s", self.url, said.text)
        if (hear := self.heard.get(type(said))) is not None:
            hear(said)

    def writable(self) -> None:
        for user in self.users:
            if (writable := getattr(user, "writable", None)) is not None:
                writable()

    def lost(self, why: str) -> None:
        self.last_failure = self.last_failure or why
        self._ended.set()
        if self.state is not State.LIVE:
            # In the middle of the beginning.
            self._fail_answers(ProtocolError("lost", self._goodbye or why))
