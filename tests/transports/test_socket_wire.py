"""Socket files: permissions, cleanup, and the identity of the peer."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from tests.transports.wires import FILES, MAX_FRAME_BYTES, End, Place, play
from trunkline.errors import InvalidSettings
from trunkline.transports.addresses import SocketFile, at, path_of, place_of
from trunkline.transports.sockets import TcpTransport


@pytest.fixture(params=FILES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_only_its_owner_may_open_it(kind: str, tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        assert stat.S_IMODE((tmp_path / "hub.sock").stat().st_mode) == 0o600
        _, hub = await here.both()
        assert hub.wire.peer.identity == f"uid:{os.getuid()}"

    mask = os.umask(0)
    try:
        play(asyncio.run, kind, tmp_path, played)
    finally:
        os.umask(mask)
    assert not (tmp_path / "hub.sock").exists()


def test_a_file_that_a_dead_hub_left_is_taken_over(kind: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "hub.sock"))

    async def played(here: Place) -> None:
        await here.both()

    play(asyncio.run, kind, tmp_path, played)


def test_a_file_of_another_kind_is_left_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "hub.sock").write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        asyncio.run(Place(kind, tmp_path).listen())
    assert (tmp_path / "hub.sock").read_text() == "precious"


def test_a_hub_that_is_too_busy_to_answer_is_there(tmp_path: Path) -> None:
    path = tmp_path / "hub.sock"
    with (
        socket.socket(socket.AF_UNIX) as busy,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.connect(str(path))
        with pytest.raises(OSError, match="already"):
            SocketFile(path)
    assert path.exists()


def test_what_another_hub_has_made_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "hub.sock"
    old = SocketFile(path)
    old.socket.close()
    new = SocketFile(path)
    old.remove()
    assert path.exists()
    new.remove()
    new.socket.close()
    assert not path.exists()


def test_its_folder_is_made(kind: str, tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        await here.both()

    play(asyncio.run, kind, tmp_path / "run" / "trunkline", played)


def test_places() -> None:
    assert place_of("tcp://") == ("127.0.0.1", 7420)
    assert place_of("tcp://hub.example") == ("hub.example", 7420)
    assert place_of("tcp://[::1]:80") == ("::1", 80)
    assert place_of("zmq+tcp://*:0") == ("0.0.0.0", 0)
    assert at("tcp", "::1", 80) == "tcp://[::1]:80"
    assert path_of("unix:///run/x") == path_of("unix:/run/x") == Path("/run/x")
    for url in ("tcp://host:port", "tcp://host:99999", "tcp://[::1"):
        with pytest.raises(InvalidSettings, match=r"is not a valid address: write it as tcp://127\.0\.0\.1:7420"):
            place_of(url)
    with pytest.raises(InvalidSettings, match="names no socket file"):
        path_of("unix://")


def test_an_address_of_six_parts(tmp_path: Path) -> None:
    async def main() -> None:
        listener = await TcpTransport().listen("tcp://[::1]:0", End, max_frame_bytes=MAX_FRAME_BYTES)
        host, port = place_of(listener.address)
        assert host == "::1"
        wire = await TcpTransport().connect(listener.address, End, max_frame_bytes=MAX_FRAME_BYTES)
        assert wire.peer.address == f"::1:{port}"
        wire.abort()
        await listener.aclose()

    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    asyncio.run(main())


@pytest.mark.parametrize(
    ("addresses", "text"), [(1, "Connection refused"), (2, "no address of host accepts the connection")]
)
def test_a_refused_connection_in_plain_words(addresses: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio says "Connect call failed" and "Multiple exceptions", with addresses as tuples."""
    places = []
    for _ in range(addresses):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            places.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", taken.getsockname()))

    async def resolve(*_: object, **__: object) -> list[object]:
        return [*places]

    async def connect() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        await TcpTransport().connect("tcp://host:1", End, max_frame_bytes=MAX_FRAME_BYTES)

    with pytest.raises(OSError, match=text):
        asyncio.run(connect())
