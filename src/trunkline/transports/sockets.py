"""Stream sockets: `unix:///path` and `tcp://host:port`, on asyncio, or on uvloop if that runs the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from trunkline.errors import ProtocolError
from trunkline.transports.transport import HIGH_BYTES, LOW_BYTES, Accept, Frame, Listener, Peer, Receiver, Wire
from trunkline.wire.frames import LENGTH, Splitter

DEFAULT_PORT = 7420
_JOINED = 4096
"""Frames up to this size are joined before they are written: one buffer costs less than many small ones."""


class SocketWire(asyncio.Protocol):
    """One connection, on either side."""

    def __init__(self, receiver: Callable[[Wire], Receiver], max_frame_bytes: int, opened: Callable[[], None]) -> None:
        self._receiver_of = receiver
        self._receiver: Receiver | None = None
        self._splitter = Splitter(max_frame_bytes)
        self._opened = opened
        self._transport: asyncio.Transport
        self._why = ""
        self._closing = False
        self._full = False
        self.peer = Peer("anonymous", "")

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not always a subclass: those of uvloop are none.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)
        self.peer = peer_of(self._transport)
        self._receiver = self._receiver_of(self)
        self._opened()

    def data_received(self, data: bytes) -> None:
        assert self._receiver is not None
        try:
            frames = self._splitter.feed(data)
        except ProtocolError as error:
            # What follows cannot be told apart any more.
            self._why = error.text
            self._transport.abort()
            return
        if frames:
            self._receiver.received(frames)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._receiver is not None:
            self._receiver.writable()

    def connection_lost(self, error: Exception | None) -> None:
        if self._receiver is not None:
            self._receiver.lost(self._why or (str(error) if error is not None else "the connection was closed"))

    # What its user asks for

    def send(self, frames: Sequence[Frame]) -> None:
        if self._closing or self._transport.is_closing():
            return
        buffers: list[Any] = []
        for frame in frames:
            size = 0
            for part in frame:
                size += len(part)
            buffers.append(LENGTH.pack(size))
            buffers.extend(frame)
        if len(buffers) == 2:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    @property
    def backlog(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        self._closing = True
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()


def peer_of(transport: asyncio.Transport) -> Peer:
    """Who is there: by the certificate it has shown, or by what the kernel says of the process."""
    encrypted: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    address = transport.get_extra_info("peername")
    where = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
    if encrypted is not None:
        certificate = encrypted.getpeercert()
        subject: Any = (certificate or {}).get("subject", ())
        for part in subject:
            for name, value in part:
                if name == "commonName":
                    return Peer(f"cert:{value}", where)
        return Peer("anonymous", where)
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX and hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return Peer(f"uid:{uid}", f"process {pid}")
    return Peer("anonymous", where)


class _Server:
    def __init__(self, server: asyncio.Server, address: str, path: Path | None = None) -> None:
        self._server = server
        self._path = path
        self._inode = path.stat().st_ino if path is not None else 0
        self.address = address

    async def aclose(self) -> None:
        self._server.close()
        if self._path is not None:
            # Only our own: another hub may have taken the place over.
            with contextlib.suppress(OSError):
                if self._path.stat().st_ino == self._inode:
                    self._path.unlink()


class UnixTransport:
    """`unix:///run/user/1000/trunkline.sock`. Whoever may open the socket file may connect: its mode is 0600."""

    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()
        _, wire = await loop.create_unix_connection(
            lambda: SocketWire(receiver, max_frame_bytes, opened.set), str(path_of(url))
        )
        await opened.wait()
        return wire

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        path = path_of(url)
        _clear(path)
        loop = asyncio.get_running_loop()
        # Made with the mode it is to have: between making and changing it, others might connect.
        mask = os.umask(0o177)
        try:
            server = await loop.create_unix_server(
                lambda: SocketWire(accept, max_frame_bytes, lambda: None), str(path), backlog=1024
            )
        finally:
            os.umask(mask)
        return _Server(server, f"unix://{path}", path)


def _clear(path: Path) -> None:
    """Remove a socket file that nobody listens on any more; raises OSError if somebody does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_socket():
        if path.exists():
            raise FileExistsError(f"{path} is there, and is not a socket")
        return
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise OSError(f"somebody listens on {path} already")


def path_of(url: str) -> Path:
    path = url.partition("://")[2] or url.partition(":")[2]
    return Path(path).expanduser()


class TcpTransport:
    """`tcp://host:7420`, with TLS if `context` gives any."""

    def __init__(
        self, server_context: ssl.SSLContext | None = None, client_context: ssl.SSLContext | None = None
    ) -> None:
        self._server_context = server_context
        self._client_context = client_context

    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        host, port = place_of(url)
        opened = asyncio.Event()
        _, wire = await asyncio.get_running_loop().create_connection(
            lambda: SocketWire(receiver, max_frame_bytes, opened.set), host, port, ssl=self._client_context
        )
        await opened.wait()
        return wire

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        host, port = place_of(url)
        server = await asyncio.get_running_loop().create_server(
            lambda: SocketWire(accept, max_frame_bytes, lambda: None),
            host,
            port,
            ssl=self._server_context,
            backlog=1024,
        )
        port = server.sockets[0].getsockname()[1]
        return _Server(server, f"tcp://{host}:{port}")


def place_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", DEFAULT_PORT if parts.port is None else parts.port
