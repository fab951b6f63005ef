"""One connection to NATS with nats-py: connecting, sending, and the end of the connection.

Every call of nats-py here returns without waiting: its buffers are unlimited, because the outbox is limited. Data is
written at `flush`, at the latest in the next turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import SlowConsumerError, UnexpectedEOF
from nats.protocol.command import pub_cmd
from trunkline.brokers.engine.settings import EngineUrl
from trunkline.brokers.nats.address import key_files, login_of, servers_of
from trunkline.brokers.nats.refusals import NAME, translate, translated
from trunkline.brokers.nats.straight import Handle, StraightWriter, listen, read_straight, without_waiting
from trunkline.errors import EngineUnavailable

log = logging.getLogger("trunkline.connection")

CLOSE_S = 2.0
ONE_OF_ALL = "any"
"""A queue group of NATS: one of its members gets a message."""
CLOSED = "the server closed it: it was stopped, or this process reads too slowly for the max_pending of the server"
"""The server does not report which of the two it was."""


class NatsLink:
    def __init__(self, where: EngineUrl, client: str, slow: Callable[[int], None]) -> None:
        key_files(where.options)
        self._where = where
        self._client = client
        self._slow = slow
        """Called with the number of the nats-py subscription of which a message was dropped."""
        self.servers = servers_of(where.address)
        self.url = ",".join(self.servers)
        self.connection: Client | None = None
        self.inbox = ""
        """The prefix of the subjects of answers."""
        self.why = ""
        self._straight: StraightWriter | None = None
        self._ended: asyncio.Future[str]
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def backlog(self) -> int:
        return 0 if self.connection is None else self.connection.pending_data_size

    async def connect(self, prepare: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self.why = ""
        connection = Client()
        try:
            with translated(self.url):
                try:
                    await connection.connect(self.servers, **self._options())
                except Exception as error:
                    if self.why and not isinstance(error, OSError):
                        raise translate(self.url, OSError(self.why)) from error
                    raise
            self.connection = connection
            self._straight = StraightWriter.of(connection)
            read_straight(connection)
            self.inbox = connection.new_inbox()
            await prepare(connection)
        except BaseException:
            self.connection = None
            await _close(connection)
            raise
        # nats-py does not always call `closed_cb`: its reader may be cancelled before that.
        if (reading := getattr(connection, "_reading_task", None)) is not None:
            reading.add_done_callback(lambda _: self._end())

    def _options(self) -> dict[str, Any]:
        settings = self._where.settings
        return {
            "name": self._client,
            "error_cb": self._error,
            "closed_cb": self._closed,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": settings.connect_s,
            "ping_interval": 10,
            "max_outstanding_pings": 2,
            "pending_size": 0,
            "flusher_queue_size": 0,
            "skip_subject_validation": True,
            **login_of(self._where),
        }

    async def _error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self._slow(error.sid)
        else:
            self.why = CLOSED if isinstance(error, UnexpectedEOF) else str(error) or type(error).__name__
            log.debug("%s: %s", self.url, self.why)

    async def _closed(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(self.why or CLOSED)

    async def ended(self) -> str:
        why = await self._ended
        self.connection = None
        return why

    async def aclose(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connection, self.connection = self.connection, None
        if connection is not None:
            await _close(connection)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Sending

    @property
    def live(self) -> bool:
        return self.connection is not None and self.connection.is_connected

    def required(self) -> Client:
        """The connection. Raises EngineUnavailable if there is none."""
        if self.connection is None:
            raise EngineUnavailable(NAME, self.url, "there is no connection")
        return self.connection

    def publish(self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        connection = self.connection
        if connection is None or not connection.is_connected:
            return
        if headers is None and self._straight is not None and len(data) <= connection.max_payload:
            self._straight.add(pub_cmd(subject, reply, data))
        else:
            without_waiting(connection.publish(subject, data, reply=reply, headers=headers))

    def write(self, commands: bytes) -> None:
        """Send protocol commands as they are. nats-py takes three times as long to make one with headers."""
        connection = self.connection
        if not commands or connection is None or not connection.is_connected:
            return
        if self._straight is not None:
            self._straight.add(commands)
            return
        without_waiting(connection._send_command(commands))
        if connection._flush_queue is not None and connection._flush_queue.empty():
            without_waiting(connection._flush_pending())

    def flush(self) -> None:
        """Write the queued data now."""
        if self.connection is not None and self._straight is not None:
            self._straight.flush()

    def listen(self, subject: str, handle: Handle) -> Subscription:
        """Subscribe to a subject. Raises EngineUnavailable."""
        with translated(self.url):
            return listen(self.required(), subject, handle)

    def answer_for(self, subject: str) -> Subscription:
        """Subscribe to a subject only so that the server does not report that nobody does. Raises EngineUnavailable."""
        with translated(self.url):
            return listen(self.required(), subject, lambda message: None, ONE_OF_ALL)

    async def request(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, timeout_s: float = 0.0
    ) -> Msg:
        connection = self.required()
        limit_s = timeout_s or self._where.settings.connect_s
        with translated(self.url):
            return await connection.request(subject, data, timeout=limit_s, headers=headers)


async def _close(connection: Client) -> None:
    """Close a connection. Gives up after CLOSE_S if the server does not answer."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.close()
    except TimeoutError:
        log.debug("a connection to NATS could not be closed in %g s", CLOSE_S)
