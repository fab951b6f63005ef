"""The link to a kernel over its own ZeroMQ sockets, as its connection file names them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from trunkline.clock import World
from trunkline.jupyter.errors import KernelClosed, KernelNotStarted
from trunkline.jupyter.link import KernelReceiver
from trunkline.jupyter.message_types import CONTROL, IOPUB, SHELL, SOCKETS, STDIN
from trunkline.jupyter.wire import KernelMessage, KernelWire, Unreadable
from trunkline.transports.zmq.socket import EVENTS, NOBLOCK, Socket, SocketWatch, close_socket, open_socket

MAX_DRAIN: Final = 1000
"""The maximum number of messages to take at once, before other tasks run."""
log = logging.getLogger("trunkline.jupyter")

CONNECT_POLL_S: Final = 0.005
CONNECT_S: Final = 5.0
POLLOUT: Final = int(zmq.POLLOUT)
KINDS: Final = {SHELL: zmq.DEALER, CONTROL: zmq.DEALER, STDIN: zmq.DEALER, IOPUB: zmq.SUB}


class KernelConnection(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a kernel and the key of its messages, from a connection file."""

    shell_port: int
    iopub_port: int
    stdin_port: int
    control_port: int
    hb_port: int
    ip: str = "127.0.0.1"
    transport: str = "tcp"
    key: str = ""
    signature_scheme: str = "hmac-sha256"
    kernel_name: str = ""
    curve_publickey: str = ""
    curve_secretkey: str = ""

    @classmethod
    def load(cls, path: str | Path) -> KernelConnection:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise KernelNotStarted(f"cannot read the connection file {path}: {error.strerror}", "") from error
        try:
            return cls.of(json.loads(text))
        except ValueError as error:
            raise KernelNotStarted(f"{path} is not the connection file of a kernel: {error}", "") from error

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> KernelConnection:
        """Read the connection from the connection info of jupyter_client."""
        known = {name: info[name] for name in cls.__struct_fields__ if info.get(name) is not None}
        known |= {name: value.decode() for name, value in known.items() if isinstance(value, bytes)}
        return msgspec.convert(known, cls)

    def protect(self, socket: Socket) -> None:
        """Enable encryption on a socket if the kernel uses it. The connection file has the keys of both sides."""
        if self.curve_publickey:
            socket.curve_serverkey = socket.curve_publickey = self.curve_publickey.encode()
            socket.curve_secretkey = self.curve_secretkey.encode()

    def url(self, socket: str) -> str:
        port = getattr(self, f"{socket}_port")
        return f"{self.transport}://{self.ip}{'-' if self.transport == 'ipc' else ':'}{port}"


class SocketLink:
    """A link over ZeroMQ sockets.

    After closing, unsent messages are sent for up to `linger_s`; use 0 if the kernel ends first.
    """

    def __init__(
        self, kernel_id: str, connection: KernelConnection, session: str, world: World, *, linger_s: float = 1.0
    ) -> None:
        self._linger_s = linger_s
        self.connection = connection
        self.wire = KernelWire(kernel_id, world.time_ns, connection.key.encode(), connection.signature_scheme)
        self._identity = session.encode()
        self._sockets: dict[str, Socket] = {}
        self._watches: dict[str, SocketWatch] = {}
        self._client: KernelReceiver | None = None

    async def open(self, client: KernelReceiver) -> None:
        await self.aclose()
        self._client = client
        for name in SOCKETS:
            socket = self._sockets[name] = open_socket(KINDS[name])
            # No limit here: otherwise the kernel silently drops messages that are not read in time.
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            self.connection.protect(socket)
            if name == IOPUB:
                socket.setsockopt(zmq.SUBSCRIBE, b"")
                # A kernel sends a welcome message for each new subscription topic. Other clients subscribe to
                # everything. With a unique topic, this client always gets a welcome message, and can check which key
                # the kernel signs with.
                socket.setsockopt(zmq.SUBSCRIBE, self._identity)
            else:
                # The same identity on all sockets: a kernel requests input on stdin from the identity that sent the
                # shell request.
                socket.setsockopt(zmq.IDENTITY, self._identity)
            if name == STDIN:
                # Writable only when it is connected, so that it is possible to wait for that.
                socket.setsockopt(zmq.IMMEDIATE, 1)
            socket.connect(self.connection.url(name))
            self._watches[name] = SocketWatch(socket, self._drainer(name, socket))

    def _drainer(self, name: str, socket: Socket) -> Any:
        receive = socket.recv_multipart
        unpack = self.wire.unpack

        def drain() -> bool:
            client = self._client
            if client is None:
                return False
            messages: list[KernelMessage] = []
            more = True
            for _ in range(MAX_DRAIN):
                try:
                    frames = receive(NOBLOCK)
                except zmq.Again:
                    more = False
                    break
                try:
                    messages.append(unpack(name, frames))
                except Unreadable as error:
                    client.count_fault(error.fault, f"on {name}: {error}")
            if messages:
                client.take(messages)
            return more

        return drain

    async def send(self, message: KernelMessage) -> None:
        socket = self._sockets.get(message.socket)
        if socket is None:
            raise KernelClosed(self.wire.kernel_id)
        if message.content.get("allow_stdin"):
            await self._input_connected()
        try:
            socket.send_multipart(self.wire.pack(message), NOBLOCK)
        except zmq.Again:
            # Only stdin does not wait: the request for input is gone.
            raise KernelClosed(self.wire.kernel_id) from None
        # Sending may have consumed the event that a message can be received.
        self._watches[message.socket].check()

    async def _input_connected(self) -> None:
        """Wait until the input socket is connected. Each socket connects on its own, with retries.

        If a kernel requests input before this socket is connected, the request is lost and the kernel waits for ever.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + CONNECT_S
        while (socket := self._sockets.get(STDIN)) is not None and not int(socket.getsockopt(EVENTS)) & POLLOUT:
            if loop.time() > deadline_s:
                log.warning(
                    "the kernel %s does not open its stdin socket: its code cannot ask for input", self.wire.kernel_id
                )
                break
            await asyncio.sleep(CONNECT_POLL_S)
        if STDIN in self._watches:
            # The poll may have consumed the event that a message can be received.
            self._watches[STDIN].check()

    async def aclose(self) -> None:
        for watch in self._watches.values():
            watch.stop()
        for socket in self._sockets.values():
            close_socket(socket, self._linger_s)
        self._watches.clear()
        self._sockets.clear()


async def beat(
    connection: KernelConnection, every_s: float, timeout_s: float, on_answer: Callable[[], object] = lambda: None
) -> str:
    """Send heartbeats; return when none was answered for `timeout_s`."""
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()
    last_s = loop.time()
    while True:
        socket = open_socket(zmq.REQ)
        socket.setsockopt(zmq.RCVHWM, 0)
        connection.protect(socket)

        def drain(socket: Socket = socket) -> bool:
            try:
                socket.recv(NOBLOCK)
            except zmq.Again:
                return False
            answered.set()
            return True

        socket.connect(connection.url("hb"))
        watch = SocketWatch(socket, drain)
        try:
            while True:
                answered.clear()
                socket.send(b"ping", NOBLOCK)
                watch.check()
                try:
                    async with asyncio.timeout(max(every_s, timeout_s - (loop.time() - last_s))):
                        await answered.wait()
                except TimeoutError:
                    if loop.time() - last_s >= timeout_s:
                        return f"it has not answered for {loop.time() - last_s:.0f} s at {connection.url('hb')}"
                    # A request without an answer blocks its socket, so a new one is used.
                    break
                last_s = loop.time()
                on_answer()
                await asyncio.sleep(every_s)
        finally:
            watch.stop()
            close_socket(socket, linger_s=0.0)
