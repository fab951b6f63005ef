"""ZeroMQ: `zmq+ipc:///path` and `zmq+tcp://host:port`, a ROUTER at the hub and a DEALER at each client.

Other programs can connect to a hub with a DEALER: packets.py describes what it must send. ZeroMQ cannot disconnect a
single peer, nor limit the memory of a message that is never completed. Therefore accept only trusted clients.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

import zmq

from trunkline.keys.store import KeyStore
from trunkline.transports.addresses import QUEUE, SocketFile, at, path_of, place_of
from trunkline.transports.binding import allowed_to_bind
from trunkline.transports.transport import Accept, Listener, Receiver, Wire
from trunkline.transports.zmq import packets
from trunkline.transports.zmq.authenticator import authenticator
from trunkline.transports.zmq.dealer import Dealer
from trunkline.transports.zmq.router import RouterSocket
from trunkline.transports.zmq.socket import Socket, close_socket, open_socket

RETRY_S: Final = 0.02
RETRIES: Final = 15
"""ZeroMQ releases a port a moment after its socket was closed. Binding is retried this many times."""


class ZmqIpcTransport:
    """`zmq+ipc:///run/user/1000/trunkline.ipc`. The mode of the socket file, 0600, controls who can connect."""

    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        return await Dealer(url, max_frame_bytes).open(f"ipc://{path_of(url)}", receiver)

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        file = SocketFile(path_of(url))
        router = _bound(file.socket, f"ipc://{file.path}", max_frame_bytes)
        return RouterSocket(router, f"zmq+ipc://{file.path}", accept, max_frame_bytes, file=file)


class ZmqTcpTransport:
    """`zmq+tcp://host:7420`, with CURVE if there are keys."""

    def __init__(self, keys: KeyStore | None = None, *, exposed: bool = False) -> None:
        self._keys = keys
        self._exposed = exposed

    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        host, port = place_of(url)
        failure: OSError = ConnectionRefusedError(errno.ECONNREFUSED, f"{host} has no address")
        for _, address in await _addresses(host, port):
            try:
                return await Dealer(url, max_frame_bytes, self._keys).open(at("tcp", address, port), receiver)
            except ConnectionError as error:
                failure = error
        raise failure

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        allowed_to_bind(url, self._keys, self._exposed)
        host, port = place_of(url)
        if self._keys is not None:
            self._keys.check_hub()
        family, address = (await _addresses(host, port))[0]
        listening = await _listen(family, address, port)
        port = listening.getsockname()[1]
        domain = None if self._keys is None else authenticator.open(self._keys.name_of_curve_key)
        try:
            router = _bound(listening, at("tcp", address, port), max_frame_bytes, self._keys, domain)
        except BaseException:
            if domain is not None:
                authenticator.close(domain)
            raise
        return RouterSocket(router, at("zmq+tcp", host, port), accept, max_frame_bytes, domain=domain)


async def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    """The addresses of a host, by family. ZeroMQ would keep retrying a name that does not exist."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted((int(family), str(address[0])) for family, _, _, _, address in found)


async def _listen(family: int, address: str, port: int) -> socket.socket:
    """Listen on a port. Raises OSError if another program still listens there after all retries."""
    for attempt in range(RETRIES + 1):
        try:
            return socket.create_server((address, port), family=family, backlog=QUEUE)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or attempt == RETRIES:
                raise
        await asyncio.sleep(RETRY_S)
    raise AssertionError


def _bound(
    listening: socket.socket,
    address: str,
    max_frame_bytes: int,
    keys: KeyStore | None = None,
    domain: bytes | None = None,
) -> Socket:
    """A ROUTER that accepts connections from a listening socket.

    ZeroMQ does not create the socket itself, because it would remove the socket file of another hub.
    """
    router = open_socket(zmq.ROUTER)
    try:
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            # The wires limit the data in flight.
            (zmq.SNDHWM, 0),
            (zmq.MAXMSGSIZE, packets.max_bytes(max_frame_bytes)),
        ):
            router.setsockopt(option, value)
        if keys is not None and domain is not None:
            public, secret = keys.curve_pair()
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_PUBLICKEY, public)
            router.setsockopt(zmq.CURVE_SECRETKEY, secret)
            router.setsockopt(zmq.ZAP_DOMAIN, domain)
            # Without this option, every client is accepted when no ZAP handler answers.
            router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        listening.setblocking(False)
        router.setsockopt(zmq.USE_FD, listening.fileno())
        router.bind(address)
        # ZeroMQ owns the socket now.
        listening.detach()
    except BaseException:
        close_socket(router, 0.0)
        listening.close()
        raise
    return router
