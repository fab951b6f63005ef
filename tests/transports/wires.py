"""Wires of every kind, with a recorder at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
import zmq

from trunkline.errors import ProtocolError
from trunkline.keys.store import KeyStore
from trunkline.transports.sockets import TcpTransport, UnixTransport
from trunkline.transports.transport import Listener, Transport, Wire
from trunkline.transports.zmq.socket import close_socket, open_socket
from trunkline.transports.zmq.transport import ZmqIpcTransport, ZmqTcpTransport

DEADLINE_S = 90.0
MAX_FRAME_BYTES = 16 * 1024 * 1024

Run = Callable[[Coroutine[Any, Any, None]], None]
LOOPS: dict[str, Run] = {"asyncio": asyncio.run, "uvloop": uvloop.run}
KINDS = ("unix", "tcp", "tls", "zmq+ipc", "zmq+tcp", "zmq+curve")
FILES = ("unix", "zmq+ipc")


def begin_what_lasts() -> None:
    """ZeroMQ's context with its descriptors, and uvloop's pipe for signals, are not leaks."""
    close_socket(open_socket(zmq.PAIR), 0.0)
    uvloop.run(asyncio.sleep(0))


class End:
    """The user of one end of a wire."""

    def __init__(self, wire: Wire, changed: asyncio.Event | None = None) -> None:
        self.wire = wire
        self.frames: list[bytes] = []
        self.turns = 0
        self.room = 0
        self.lost_because: list[str] = []
        self.complaints: list[ProtocolError] = []
        self._changed = changed or asyncio.Event()

    def received(self, frames: Sequence[memoryview]) -> None:
        assert not self.lost_because
        self.turns += 1
        self.frames += [bytes(frame) for frame in frames]
        self._changed.set()

    def broken(self, error: ProtocolError) -> None:
        self.complaints.append(error)
        self.wire.close()
        self._changed.set()

    def writable(self) -> None:
        self.room += 1
        self._changed.set()

    def lost(self, why: str) -> None:
        self.lost_because.append(why)
        self._changed.set()

    async def until(self, condition: Callable[[End], object]) -> None:
        """Wait until the condition holds, checking after each event here."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def has(self, count: int) -> list[bytes]:
        await self.until(lambda end: len(end.frames) >= count)
        return self.frames

    async def ended(self) -> str:
        await self.until(lambda end: end.lost_because)
        return self.lost_because[0]


class Place:
    """A listening address, and its connections."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.ends: list[End] = []
        self.listener: Listener
        self.client_keys: KeyStore | None = None
        self.hub_keys: KeyStore | None = None
        self._changed = asyncio.Event()
        if kind in ("tls", "zmq+curve"):
            self.hub_keys, self.client_keys = keys_in(folder)

    @property
    def url(self) -> str:
        if self.kind in FILES:
            return f"{self.kind}://{self.folder / 'hub.sock'}"
        return "zmq+tcp://127.0.0.1:0" if self.kind.startswith("zmq") else "tcp://127.0.0.1:0"

    def transport(self, keys: KeyStore | None) -> Transport:
        match self.kind:
            case "unix":
                return UnixTransport()
            case "zmq+ipc":
                return ZmqIpcTransport()
            case "tcp" | "tls":
                return TcpTransport(keys)
            case _:
                return ZmqTcpTransport(keys)

    async def listen(self) -> None:
        self.listener = await self.transport(self.hub_keys).listen(
            self.url, self._accept, max_frame_bytes=MAX_FRAME_BYTES
        )

    def _accept(self, wire: Wire) -> End:
        self.ends.append(End(wire, self._changed))
        self._changed.set()
        return self.ends[-1]

    async def connect(self, keys: KeyStore | None = None) -> End:
        """A client. It has its own keys, if the address needs them."""
        ends: list[End] = []

        def mine(wire: Wire) -> End:
            ends.append(End(wire))
            return ends[-1]

        async with asyncio.timeout(DEADLINE_S):
            await self.transport(keys or self.client_keys).connect(
                self.listener.address, mine, max_frame_bytes=MAX_FRAME_BYTES
            )
        return ends[0]

    async def arrived(self, count: int = 1) -> End:
        """The hub's end of the connection that came as the `count`th."""
        await self.until(lambda: len(self.ends) >= count)
        return self.ends[count - 1]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds, checking after each event at the hub's ends."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def both(self) -> tuple[End, End]:
        """A client, and the hub's end of it."""
        before = len(self.ends)
        return await self.connect(), await self.arrived(before + 1)


@asynccontextmanager
async def place(kind: str, folder: Path) -> AsyncIterator[Place]:
    """All connections are aborted at the end."""
    here = Place(kind, folder)
    await here.listen()
    clients: list[End] = []
    connect = here.connect

    async def remember(keys: KeyStore | None = None) -> End:
        clients.append(await connect(keys))
        return clients[-1]

    here.connect = remember  # type: ignore[method-assign]
    try:
        yield here
    finally:
        await here.listener.aclose()
        for end in [*clients, *here.ends]:
            end.wire.abort()
        for end in [*clients, *here.ends]:
            await end.ended()


def keys_in(folder: Path) -> tuple[KeyStore, KeyStore]:
    """Keys of a hub, and of a client named alice."""
    hub = KeyStore(folder / "keys")
    hub.make_hub()
    hub.make_client("alice")
    return hub, KeyStore(hub.bundle("alice"))


Scene = Callable[[Place], Awaitable[None]]


def play(run: Run, kind: str, folder: Path, scene: Scene) -> None:
    async def main() -> None:
        async with place(kind, folder) as here:
            await scene(here)

    run(main())
