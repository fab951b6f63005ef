"""A link: two connections to one Redis server. One carries commands in a pipeline, the other published messages.

redis-py makes the connections (addresses, TLS, passwords), and hiredis reads the replies. The retries of redis-py are
disabled: it would silently send a command again, although the first one may have been executed. A link that has ended
is not used again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = logging.getLogger("trunkline.connection")

Word = str | bytes | int
Reply = Any
"""A reply as hiredis parsed it. An error reply is a RedisError."""
Done = Callable[[Reply], None]


ALONE_S = 0.05
"""If both connections end within this time, the reason is the same."""


class LinkEnded(Exception):
    """The link has ended. It is unknown whether commands without a reply were executed."""


class RedisLink:
    def __init__(self, published: Callable[[Any], None], ended: Callable[[str], None]) -> None:
        self._published = published
        """Called with each message of the second connection, as hiredis parsed it."""
        self._ended = ended
        """Called once, with the reason, when one of the two connections ends."""
        self._commands: AbstractConnection | None = None
        self._subscriptions: AbstractConnection | None = None
        self._waiting: deque[Done | None] = deque()
        """The callbacks of commands without a reply, in order."""
        self._unsent: list[bytes] = []
        self._unsent_subscriptions: list[bytes] = []
        self._marks = 0
        """How many marks are not answered yet."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.over = False
        self.cut_off = False
        """Whether the server has closed only the second connection, because this process read it too slowly."""

    async def open(self, make: Callable[[], AbstractConnection]) -> None:
        """Open both connections. Raises a RedisError or OSError."""
        self._commands = make()
        self._subscriptions = make()
        try:
            for connection in (self._commands, self._subscriptions):
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await self._disconnect()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._write(), self._read(), self._listen())]

    # Commands

    def call(self, done: Done | None, *words: Word) -> None:
        """Send a command after the earlier ones. `done` is called with the reply or LinkEnded, and must not raise."""
        if self.over or self._commands is None:
            if done is not None:
                done(LinkEnded("the connection has ended"))
            return
        self._waiting.append(done)
        self._unsent += self._commands.pack_command(*words)
        self._wake.set()

    async def ask(self, *words: Word) -> Reply:
        """Send a command and return the reply. Raises LinkEnded, or the error that the server answered with."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply) -> None:
            if not answer.done():
                answer.set_result(reply)

        self.call(done, *words)
        reply = await answer
        if isinstance(reply, Exception):
            raise reply
        return reply

    def subscribe(self, *words: Word) -> None:
        """Send a command on the second connection: SUBSCRIBE, PSUBSCRIBE and their opposites."""
        if not self.over and self._subscriptions is not None:
            self._unsent_subscriptions += self._subscriptions.pack_command(*words)
            self._wake.set()

    def mark(self, token: Word) -> None:
        """Send a PING on the second connection. No commands are sent before its `pong` has arrived.

        A client that subscribes and then publishes therefore gets its message, although the two use different
        connections.
        """
        self._marks += 1
        self.subscribe("PING", token)

    @property
    def backlog(self) -> int:
        """Bytes of commands that were not written yet."""
        return sum(map(len, self._unsent))

    # The connections

    async def _write(self) -> None:
        assert self._commands is not None
        assert self._subscriptions is not None
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if words := self._unsent_subscriptions:
                    self._unsent_subscriptions = []
                    await self._subscriptions.send_packed_command(words, check_health=False)
                if not self._marks and (words := self._unsent):
                    self._unsent = []
                    await self._commands.send_packed_command(words, check_health=False)
        except (RedisError, OSError) as error:
            self._end(f"sending failed: {error}")
        except Exception as error:
            self._break(error)

    async def _read(self) -> None:
        assert self._commands is not None
        try:
            while True:
                try:
                    reply = await self._commands.read_response(disable_decoding=True)
                except RedisError as error:
                    if not self._commands.is_connected:
                        raise
                    reply = error
                done = self._waiting.popleft()
                if done is not None:
                    done(reply)
        except (RedisError, OSError) as error:
            self._end(f"the command connection ended: {error}")
        except Exception as error:
            self._break(error)

    async def _listen(self) -> None:
        assert self._subscriptions is not None
        try:
            while True:
                message = await self._subscriptions.read_response(disable_decoding=True)
                if message[0] == b"pong":
                    self._marks -= 1
                    self._wake.set()
                self._published(message)
        except (RedisError, OSError) as error:
            # If the server is gone, the other connection also ends.
            await asyncio.sleep(ALONE_S)
            self.cut_off = not self.over
            self._end(f"the server closed the pub/sub connection alone: {error}")
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """End the link after a callback has raised. This is a defect, and is logged."""
        log.error("a reply of the server could not be handled", exc_info=error)
        self._end(f"a defect in Trunkline: {type(error).__name__}: {error}")

    def _end(self, why: str) -> None:
        if self.over:
            return
        self.over = True
        waiting, self._waiting = self._waiting, deque()
        for done in waiting:
            if done is not None:
                done(LinkEnded(why))
        self._ended(why)

    def fail(self, why: str) -> None:
        """End the link, because the server does not answer, or not as expected."""
        self._end(why)

    async def aclose(self) -> None:
        """Disconnect. Commands without a reply get LinkEnded. `ended` is not called."""
        if not self.over:
            self._ended = lambda why: None
            self._end("it was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._disconnect()

    async def _disconnect(self) -> None:
        for connection in (self._commands, self._subscriptions):
            if connection is not None:
                await connection.disconnect(nowait=True)


def no_retry() -> Retry:
    """Disables the silent retries of redis-py."""
    return Retry(NoBackoff(), 0)
