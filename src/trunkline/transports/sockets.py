"""Stream sockets: `unix:///path` and `tcp://host:port`, on asyncio, or on uvloop if that runs the event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

from trunkline.errors import TrunklineError
from trunkline.keys.store import KeyStore
from trunkline.transports.addresses import QUEUE, SocketFile, at, path_of, place_of
from trunkline.transports.binding import allowed_to_bind
from trunkline.transports.transport import (
    HIGH_BYTES,
    LINGER_S,
    LOW_BYTES,
    Accept,
    Frame,
    Listener,
    PeerIdentity,
    Receiver,
    Wire,
)
from trunkline.wire.frames import LENGTH, Splitter

log = logging.getLogger("trunkline.transports")

HANDSHAKE_S = 10.0
"""The time limit of a TLS handshake."""


JOINED_BYTES = 32 * 1024
UNSENT_BYTES = 128 * 1024
"""The limit of unsent bytes in the kernel for a TCP connection.

The default is megabytes, which urgent messages cannot overtake. The default of a unix socket is about the same.
"""


_length = LENGTH.pack


class SocketWire(asyncio.Protocol):
    """One connection, on either side. `admit` identifies the peer, or raises ConnectionRefusedError."""

    def __init__(
        self,
        receiver: Callable[[Wire], Receiver],
        max_frame_bytes: int,
        opened: Callable[[], None] = lambda: None,
        admit: Callable[[asyncio.Transport], PeerIdentity] | None = None,
        refused: str = "the connection was closed",
    ) -> None:
        self._receiver_of = receiver
        self._receiver: Receiver | None = None
        self._splitter = Splitter(max_frame_bytes)
        self._opened = opened
        self._admit = admit or peer_of
        self._closed = refused
        """The probable reason if the other side closes the connection without a message."""
        self._transport: asyncio.Transport
        self._descriptor = -1
        """The socket, if bytes can be written to it directly; otherwise -1."""
        self._why = ""
        self._paused = False
        self._closing = False
        self._lost = False
        self._linger: asyncio.TimerHandle | None = None
        self.peer = PeerIdentity("anonymous", "")

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not always a subclass: the transports of uvloop are not.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if sock is not None and os.name == "posix" and self._transport.get_extra_info("ssl_object") is None:
            self._descriptor = sock.fileno()
        try:
            self.peer = self._admit(self._transport)
        except ConnectionRefusedError as refused:
            log.warning("%s", refused)
            self._transport.abort()
            return
        self._receiver = self._receiver_of(self)
        self._opened()

    def data_received(self, data: bytes) -> None:
        receiver, splitter = self._receiver, self._splitter
        if receiver is None or self._closing:
            return
        self._closed = "the connection was closed"
        if frames := splitter.feed(data):
            receiver.received(frames)
        if splitter.broken is not None and not self._why:
            self._why = splitter.broken.text
            receiver.broken(splitter.broken)

    def resume_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.writable()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._linger is not None:
            self._linger.cancel()
        if self._receiver is not None:
            self._receiver.lost(self._why or (self._closed if error is None else _text(error)))

    # The interface of Wire

    def send(self, frames: Sequence[Frame]) -> None:
        transport = self._transport
        if self._closing or transport.is_closing():
            return
        if len(frames) == 1:
            (frame,) = frames
            size = len(frame[0]) if len(frame) == 1 else sum(map(len, frame))
            if size <= JOINED_BYTES:
                data = _length(size) + (frame[0] if len(frame) == 1 else b"".join(frame))
                if self._descriptor >= 0 and not transport.get_write_buffer_size():
                    # Nothing waits before it. With uvloop's own `write`, a request through a hub takes 6 % more
                    # instructions.
                    try:
                        written = os.write(self._descriptor, data)
                    except OSError:
                        # The socket is full, or the connection has ended. The transport waits, or reports the end.
                        written = 0
                    if written == len(data):
                        return
                    data = data[written:]
                transport.write(data)
                return
        buffers: list[Any] = []
        total = 0
        for frame in frames:
            size = 0
            for part in frame:
                size += len(part)
            total += size
            buffers.append(_length(size))
            buffers.extend(frame)
        if total <= JOINED_BYTES:
            # One buffer is cheaper than several small ones.
            transport.write(b"".join(buffers))
        else:
            transport.writelines(buffers)
            if transport.get_write_buffer_size() > HIGH_BYTES:
                # In Python 3.12 and 3.13, asyncio does not notice that `writelines` exceeded the limit, and would never
                # call `resume_writing`. Setting the limits makes it check.
                transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)

    @property
    def backlog(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause(self) -> None:
        if not self._closing and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        if self._closing or self._lost:
            return
        self._closing = True
        # A peer that does not read must not keep it open for ever.
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        if self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        # Send EOF, and continue to read and discard data until the other side ends. If a TCP connection is closed with
        # unread data, data that the other side has not read yet is lost, too.
        self._transport.write_eof()
        self.resume()

    def abort(self) -> None:
        self._closing = True
        if not self._lost:
            # An asyncio transport that has ended raises an error if it is aborted again.
            self._transport.abort()


def _text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the other side is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed, perhaps because only one side has keys: {(error.reason or str(error)).lower()}"
    return str(error)


def peer_of(transport: asyncio.Transport) -> PeerIdentity:
    """The identity of the peer: from its certificate, or from the kernel's information about its process."""
    encrypted: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    address = transport.get_extra_info("peername")
    where = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
    if encrypted is not None:
        certificate = encrypted.getpeercert()
        subject: Any = (certificate or {}).get("subject", ())
        for part in subject:
            for name, value in part:
                if name == "commonName":
                    return PeerIdentity(f"cert:{value}", where)
        return PeerIdentity("anonymous", where)
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX and hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return PeerIdentity(f"uid:{uid}", f"process {pid}", pid if uid == os.geteuid() else 0)
    return PeerIdentity("anonymous", where)


class _Server:
    def __init__(self, server: asyncio.Server, address: str, file: SocketFile | None = None) -> None:
        self._server = server
        self._file = file
        self.address = address

    async def aclose(self) -> None:
        self._server.close()
        if self._file is not None:
            self._file.remove()


class UnixTransport:
    """`unix:///run/user/1000/trunkline.sock`. Every user who may open the socket file may connect; its mode is 0600."""

    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        opened = asyncio.Event()
        _, wire = await asyncio.get_running_loop().create_unix_connection(
            lambda: SocketWire(receiver, max_frame_bytes, opened.set), str(path_of(url))
        )
        await opened.wait()
        return wire

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        file = SocketFile(path_of(url))
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: SocketWire(accept, max_frame_bytes), sock=file.socket, backlog=QUEUE
        )
        return _Server(server, f"unix://{file.path}", file)


class TcpTransport:
    """`tcp://host:7420`, with TLS and certificates on both sides if there are keys."""

    def __init__(self, keys: KeyStore | None = None, *, exposed: bool = False) -> None:
        self._keys = keys
        self._exposed = exposed

    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        host, port = place_of(url)
        context = None if self._keys is None else self._keys.client_context()
        opened = asyncio.Event()
        refused = "it ended the connection without an answer: perhaps it has keys, and " + (
            "this side has none" if context is None else "it does not accept those of this side"
        )
        try:
            _, wire = await asyncio.get_running_loop().create_connection(
                lambda: SocketWire(receiver, max_frame_bytes, opened.set, refused=refused),
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            )
        except ssl.SSLError as error:
            raise ConnectionRefusedError(errno.ECONNREFUSED, _text(error)) from error
        except ConnectionRefusedError as error:
            # asyncio's own text is "Connect call failed", and the address as a tuple.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)) from error
        except OSError as error:
            if error.errno is None:
                # asyncio lists the errors of all addresses of the host.
                raise OSError(errno.EHOSTUNREACH, f"no address of {host} accepts the connection") from error
            raise
        await opened.wait()
        return wire

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        allowed_to_bind(url, self._keys, self._exposed)
        host, port = place_of(url)
        context = None if self._keys is None else self._keys.server_context()
        server = await asyncio.get_running_loop().create_server(
            lambda: SocketWire(accept, max_frame_bytes, admit=self._admit),
            host,
            port,
            ssl=context,
            ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            backlog=QUEUE,
        )
        port = server.sockets[0].getsockname()[1]
        return _Server(server, at("tcp", host, port))

    def _admit(self, transport: asyncio.Transport) -> PeerIdentity:
        """Check whether the certificate is revoked. The handshake has already verified it."""
        peer = peer_of(transport)
        if self._keys is None:
            return peer
        certificate: Any = transport.get_extra_info("peercert") or {}
        try:
            name = self._keys.name_of_certificate(certificate["serialNumber"])
        except (OSError, KeyError, TrunklineError) as error:
            # In doubt, the client is refused.
            raise ConnectionRefusedError(
                f"{peer.address}: the owner of the certificate could not be determined: {error}"
            ) from error
        if name is None:
            raise ConnectionRefusedError(f"{peer.address}: the certificate of {peer.identity} is revoked, or unknown")
        return PeerIdentity(f"cert:{name}", peer.address)
