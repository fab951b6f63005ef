"""A lone frame is written past the transport of the event loop: it must stay in order with what that holds back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.transports.wires import DEADLINE_S, LOOPS, MAX_FRAME_BYTES, End
from trunkline.transports.sockets import TcpTransport, UnixTransport
from trunkline.transports.transport import Wire
from trunkline.wire.frames import Splitter

FRAME_BYTES = 30_000


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["unix", "tcp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def listening(kind: str, folder: Path) -> Iterator[tuple[socket.socket, str]]:
    """A plain socket that listens, and its URL. Nothing reads from its connections unless the test does."""
    with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as listener:
        listener.bind(str(folder / "plain.sock") if kind == "unix" else ("127.0.0.1", 0))
        listener.listen()
        name = listener.getsockname()
        yield listener, f"unix://{name}" if kind == "unix" else f"tcp://127.0.0.1:{name[1]}"


@contextmanager
def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    peer, _ = listener.accept()
    with peer:
        peer.setblocking(False)
        yield peer


async def connected(kind: str, url: str) -> End:
    ends: list[End] = []

    def mine(wire: Wire) -> End:
        ends.append(End(wire))
        return ends[-1]

    transport = UnixTransport() if kind == "unix" else TcpTransport()
    await transport.connect(url, mine, max_frame_bytes=MAX_FRAME_BYTES)
    return ends[0]


def test_it_has_left_when_send_returns(loop: str, kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        with listening(kind, tmp_path) as (listener, url):
            end = await connected(kind, url)
            with accepted(listener) as peer:
                end.wire.send([(b"head", memoryview(b"body"))])
                # The event loop has not run in between.
                assert peer.recv(100) == b"\x08\0\0\0headbody"
                end.wire.send([(b"x",)])
                assert peer.recv(100) == b"\x01\0\0\0x"
                assert end.wire.backlog == 0
                end.wire.abort()
                await end.ended()

    LOOPS[loop](main())


def test_the_rest_of_a_frame_that_did_not_fit_comes_before_the_next(loop: str, kind: str, tmp_path: Path) -> None:
    frames = [bytes([number % 251]) * FRAME_BYTES for number in range(1000)]

    async def main() -> None:
        with listening(kind, tmp_path) as (listener, url):
            end = await connected(kind, url)
            with accepted(listener) as peer:
                sent: list[bytes] = []
                # One is cut in two by the full socket, and two more wait behind it.
                while end.wire.backlog <= 2 * FRAME_BYTES:
                    sent.append(frames[len(sent)])
                    end.wire.send([(sent[-1],)])
                splitter = Splitter(MAX_FRAME_BYTES)
                read = list(map(bytes, splitter.feed(peer.recv(10 * FRAME_BYTES))))
                # The socket has room again, but the transport has not noticed that yet.
                sent.append(b"next")
                end.wire.send([(b"next",)])
                while len(read) < len(sent):
                    async with asyncio.timeout(DEADLINE_S):
                        data = await asyncio.get_running_loop().sock_recv(peer, 100_000)
                    read += map(bytes, splitter.feed(data))
                    if end.wire.backlog == 0 and sent[-1] != b"last":
                        # Written directly again, behind what the transport has sent meanwhile.
                        sent.append(b"last")
                        end.wire.send([(b"last",)])
                assert read == sent
                assert read[-1] == b"last"
                end.wire.abort()
                await end.ended()

    LOOPS[loop](main())


def test_a_frame_to_a_peer_that_has_gone_ends_the_connection_and_raises_nothing(
    loop: str, kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        with listening(kind, tmp_path) as (listener, url):
            end = await connected(kind, url)
            with accepted(listener):
                pass
            for _ in range(3):
                end.wire.send([(b"x",)])
            assert await end.ended()
            # One of these has the descriptor that was the connection's.
            here, there = socket.socketpair()
            with here, there:
                end.wire.send([(b"x",)])
                for each in (here, there):
                    each.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        each.recv(1)
            assert len(end.lost_because) == 1

    LOOPS[loop](main())
