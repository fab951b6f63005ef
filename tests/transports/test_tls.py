"""Connections with and without keys: TLS with certificates, and CURVE over ZeroMQ."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transports.wires import DEADLINE_S, LOOPS, MAX_FRAME_BYTES, End, Place, Run, Scene, keys_in, play
from trunkline.clock import World
from trunkline.keys.store import KeyStore
from trunkline.transports.sockets import TcpTransport
from trunkline.transports.transport import Wire
from trunkline.transports.zmq.transport import ZmqTcpTransport

KINDS = ("tls", "zmq+curve")
LONG_AGO = World(time_ns=lambda: 1_600_000_000_000_000_000)

Play = Callable[[Scene], None]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return LOOPS[request.param]


@pytest.fixture
def scene(run: Run, kind: str, tmp_path: Path) -> Play:
    return lambda played: play(run, kind, tmp_path, played)


async def sent_away(here: Place, keys: KeyStore | None) -> None:
    """It cannot connect, or is disconnected at once. The user of the hub is not informed."""
    before = len(here.ends)
    try:
        transport = TcpTransport(keys) if here.kind == "tls" else ZmqTcpTransport(keys)
        ends: list[End] = []

        def mine(wire: Wire) -> End:
            ends.append(End(wire))
            return ends[-1]

        async with asyncio.timeout(DEADLINE_S):
            await transport.connect(here.listener.address, mine, max_frame_bytes=MAX_FRAME_BYTES)
    except OSError:
        pass
    else:
        # In TLS 1.3 a client is done with the handshake before the hub has seen its certificate.
        ends[0].wire.send([(b"let me in",)])
        if keys is None:
            # It waits for an answer to what was no TLS: the hub has ended it, or will.
            ends[0].wire.close()
        await ends[0].ended()
    assert len(here.ends) == before


async def comes_in(here: Place, keys: KeyStore | None = None) -> str:
    """Its identity at the hub."""
    before = len(here.ends)
    client = await here.connect(keys)
    hub = await here.arrived(before + 1)
    client.wire.send([(b"hello",)])
    assert await hub.has(1) == [b"hello"]
    return hub.wire.peer.identity


def test_the_name_is_that_of_the_key(scene: Play) -> None:
    async def played(here: Place) -> None:
        hub_keys = here.hub_keys
        assert hub_keys is not None
        hub_keys.make_client("bob")
        what = "cert" if here.kind == "tls" else "key"
        assert await comes_in(here) == f"{what}:alice"
        assert await comes_in(here, KeyStore(hub_keys.bundle("bob"))) == f"{what}:bob"
        assert await comes_in(here, hub_keys) == f"{what}:hub"

    scene(played)


def test_without_keys(scene: Play) -> None:
    async def played(here: Place) -> None:
        await sent_away(here, None)
        await comes_in(here)

    scene(played)


def test_keys_of_another_hub(scene: Play, tmp_path: Path) -> None:
    _, stranger = keys_in(tmp_path / "elsewhere")

    async def played(here: Place) -> None:
        assert here.client_keys is not None
        await sent_away(here, stranger)
        # Nor if it believes our hub, and has only its own keys from elsewhere.
        for name in ("authority.pem", "hub.curve"):
            (stranger.path / name).write_bytes((here.client_keys.path / name).read_bytes())
        await sent_away(here, stranger)
        await comes_in(here)

    scene(played)


def test_a_client_does_not_believe_a_hub_of_other_keys(scene: Play, tmp_path: Path) -> None:
    hub, _ = keys_in(tmp_path / "elsewhere")
    hub.make_client("eve")
    eve = KeyStore(hub.bundle("eve"))

    async def played(here: Place) -> None:
        assert here.client_keys is not None
        # Its own keys are valid, but it expects another hub.
        for name in ("own.pem", "own.key", "own.curve"):
            (eve.path / name).write_bytes((here.client_keys.path / name).read_bytes())
        await sent_away(here, eve)

    scene(played)


def test_revoked_while_the_hub_runs(scene: Play) -> None:
    async def played(here: Place) -> None:
        assert here.hub_keys is not None
        await comes_in(here)
        # As from the command line: in another process, with the same directory.
        elsewhere = KeyStore(here.hub_keys.path)
        assert [key.name for key in elsewhere.revoke("alice")] == ["alice"]
        await sent_away(here, here.client_keys)
        elsewhere.make_client("alice")
        await comes_in(here)

    scene(played)


def test_a_key_that_was_replaced_stays_revoked(scene: Play, tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        assert here.hub_keys is not None
        assert here.client_keys is not None
        stolen = KeyStore(tmp_path / "stolen")
        stolen.path.mkdir(mode=0o700)
        for file in here.client_keys.path.iterdir():
            (stolen.path / file.name).touch(0o600)
            (stolen.path / file.name).write_bytes(file.read_bytes())
        await comes_in(here, stolen)
        here.hub_keys.revoke("alice")
        here.hub_keys.make_client("alice")
        await sent_away(here, stolen)
        await comes_in(here)

    scene(played)


def test_expired(scene: Play) -> None:
    async def played(here: Place) -> None:
        assert here.hub_keys is not None
        KeyStore(here.hub_keys.path, world=LONG_AGO).make_client("carol", days=30)
        await sent_away(here, KeyStore(here.hub_keys.bundle("carol")))

    scene(played)


def test_who_is_not_in_the_register_does_not_come_in(scene: Play) -> None:
    async def played(here: Place) -> None:
        assert here.hub_keys is not None
        register = here.hub_keys.path / "register.json"
        good = register.read_bytes()
        for bad in (b"[]", b"not a register"):
            register.write_bytes(bad)
            await sent_away(here, here.client_keys)
        register.unlink()
        await sent_away(here, here.client_keys)
        register.write_bytes(good)
        await comes_in(here)

    scene(played)


def test_a_name_that_the_hub_does_not_have(tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        assert here.client_keys is not None
        context = here.client_keys.client_context()
        port = int(here.listener.address.rpartition(":")[2])
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="hub.example")

    play(asyncio.run, "tls", tmp_path, played)


def test_a_client_is_never_taken_for_a_hub(tmp_path: Path) -> None:
    hub, alice = keys_in(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(alice.path / "own.pem", alice.path / "own.key")

    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError, match="purpose"):
            await TcpTransport(hub).connect(url, End, max_frame_bytes=MAX_FRAME_BYTES)
        server.close()
        await server.wait_closed()

    asyncio.run(main())
