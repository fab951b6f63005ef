"""The link to a kernel behind a Jupyter server or gateway: one websocket instead of four sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from trunkline.clock import World
from trunkline.errors import MissingExtra
from trunkline.jupyter.errors import KernelClosed, KernelNotStarted
from trunkline.jupyter.link import KernelReceiver
from trunkline.jupyter.message_types import SOCKETS
from trunkline.jupyter.server_frames import V1, read_legacy, read_v1, write_legacy, write_v1
from trunkline.jupyter.wire import Fault, KernelMessage, KernelWire, Unreadable

try:
    from tornado.httpclient import HTTPClientError, HTTPRequest
    from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("jupyter", "kernels behind a server") from error

log = logging.getLogger("trunkline.jupyter")

MAX_MESSAGE_BYTES: Final = 1 << 30
PING_S: Final = 20.0
NOTICE_S: Final = 3.0
"""How long a server may take to notice that a connection is gone."""
PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""The pauses between attempts to reconnect. The last one is repeated."""


class ServerLink:
    """A link over a websocket.

    While the connection is lost, the server keeps the kernel's messages for this session.
    """

    def __init__(
        self,
        kernel_id: str,
        url: str,
        headers: Mapping[str, str],
        world: World,
        *,
        connections: Callable[[], Awaitable[int]],
        timeout_s: float,
        patience_s: float,
    ) -> None:
        self.wire = KernelWire(kernel_id, world.time_ns)
        self._url = url
        self._headers = dict(headers)
        self._connections = connections
        """The number of connections that the server reports for the kernel. Raises KernelNotStarted."""
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        """How long the server may take to answer again after a lost connection."""
        self._socket: WebSocketClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._client: KernelReceiver | None = None
        self._connected = asyncio.Event()

    async def open(self, client: KernelReceiver) -> None:
        self._client = client
        if self._reading is not None and not self._reading.done():
            # After a restart the server continues with the new process on the same websocket.
            return
        self._socket = await self._connect()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _connect(self) -> WebSocketClientConnection:
        request = HTTPRequest(self._url, headers=self._headers, connect_timeout=self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                socket = await websocket_connect(
                    request,
                    subprotocols=[V1],
                    max_message_size=MAX_MESSAGE_BYTES,
                    ping_interval=PING_S,
                )
        except HTTPClientError as error:
            raise KernelNotStarted(
                f"the server refuses the kernel {self.wire.kernel_id}: {error.code} {error.message}",
                self.wire.kernel_id,
            ) from error
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {self._timeout_s:g} s"
            raise KernelNotStarted(f"no Jupyter server answers at {self._url}: {why}", self.wire.kernel_id) from error
        self._connected.set()
        return socket

    async def _read(self) -> None:
        while True:
            assert self._socket is not None
            data = await self._socket.read_message()
            if data is not None:
                self._take(data)
            elif not await self._reconnect():
                return

    def _take(self, data: str | bytes) -> None:
        client, socket = self._client, self._socket
        assert client is not None
        assert socket is not None
        try:
            v1 = socket.selected_subprotocol == V1 and isinstance(data, bytes)
            channel, frames = read_v1(data) if v1 and isinstance(data, bytes) else read_legacy(data)
            if channel not in SOCKETS:
                raise Unreadable(Fault.MALFORMED, f"there is no channel {channel!r}")
            client.take([self.wire.unpack(channel, frames)])
        except Unreadable as error:
            if error.fault is not Fault.DUPLICATE:
                client.count_fault(error.fault, f"on the websocket: {error}")

    async def _reconnect(self) -> bool:
        """Whether the server answers again within the time limit."""
        self._connected.clear()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        log.warning("the connection to the kernel %s was lost; reconnecting", self.wire.kernel_id)
        await self._until_noticed()
        for pause_s in (*PAUSES_S, *(PAUSES_S[-1:] * 10_000)):
            try:
                self._socket = await self._connect()
            except KernelNotStarted as error:
                if loop.time() + pause_s > deadline_s:
                    assert self._client is not None
                    self._client.lost(str(error))
                    return False
                await asyncio.sleep(pause_s)
            else:
                return True
        return False

    async def _until_noticed(self) -> None:
        """Wait until the server has noticed the lost connection, or for NOTICE_S.

        Others may be connected to the kernel. From then on, the server keeps the kernel's messages. If the next
        connection came before that, the server would keep none, and messages between the end of the old connection and
        the start of the new one would be lost.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + NOTICE_S
        try:
            while await self._connections() and loop.time() < deadline_s:  # noqa: ASYNC110  # no notification
                await asyncio.sleep(PAUSES_S[0])
        except KernelNotStarted as error:
            log.debug("%s", error)

    async def send(self, message: KernelMessage) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._connected.wait()
            await self._write(message)
        except (WebSocketClosedError, TimeoutError) as error:
            raise KernelClosed(self.wire.kernel_id) from error

    async def _write(self, message: KernelMessage) -> None:
        socket: Any = self._socket
        if socket is None:
            raise KernelClosed(self.wire.kernel_id)
        if socket.selected_subprotocol == V1:
            _, _, *parts = self.wire.pack(message)
            await socket.write_message(write_v1(message.socket, parts), binary=True)
        else:
            data = write_legacy(message)
            await socket.write_message(data, binary=isinstance(data, bytes))

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
        if self._socket is not None:
            self._socket.close()
            # The server confirms the close, and then the connection ends.
            try:
                async with asyncio.timeout(1.0):
                    while await self._socket.read_message() is not None:
                        pass
            except TimeoutError:
                log.debug("the server has not closed the websocket of the kernel %s", self.wire.kernel_id)
            self._socket = None
