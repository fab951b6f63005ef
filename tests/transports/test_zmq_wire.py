"""Peculiarities of ZeroMQ: foreign programs, clients that vanish, and one shared context."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from tests.transports.wires import DEADLINE_S, LOOPS, MAX_FRAME_BYTES, End, Place, Run, place, play
from trunkline.transports.addresses import path_of
from trunkline.transports.transport import Wire
from trunkline.transports.zmq import packets
from trunkline.transports.zmq.authenticator import authenticator
from trunkline.transports.zmq.socket import Socket, SocketWatch, close_socket, context, open_socket
from trunkline.transports.zmq.wire import WINDOW_BYTES

SENDER = """
import asyncio, sys
from trunkline.transports.zmq.transport import ZmqIpcTransport

class Nobody:
    def lost(self, why):
        pass

async def main():
    wire = await ZmqIpcTransport().connect(sys.argv[1], lambda wire: Nobody(), max_frame_bytes=1000)
    wire.send([(b"%d" % number,) for number in range(10_000)])
    wire.close()

asyncio.run(main())
"""

# Foreign clients of a hub


class Stranger:
    """A foreign DEALER that sends arbitrary messages."""

    def __init__(self, address: str, **options: int | bytes) -> None:
        self._inbox: list[bytes] = []
        self._came = asyncio.Event()
        self._socket: Socket = open_socket(zmq.DEALER)
        for name, value in options.items():
            self._socket.setsockopt(getattr(zmq, name), value)
        self._socket.connect(address.removeprefix("zmq+"))
        self._watch = SocketWatch(self._socket, self._take)

    def _take(self) -> bool:
        self._inbox.append(b"|".join(self._socket.recv_multipart(zmq.NOBLOCK)))
        self._came.set()
        return True

    def say(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)
        self._watch.check()

    async def hears(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            while not self._inbox:
                self._came.clear()
                await self._came.wait()
        return self._inbox.pop(0)

    def vanish(self) -> None:
        """End without a goodbye."""
        self._watch.stop()
        close_socket(self._socket, 0.0)


@asynccontextmanager
async def stranger(here: Place, **options: int | bytes) -> AsyncIterator[Stranger]:
    made = Stranger(here.listener.address, **options)
    try:
        yield made
    finally:
        made.vanish()


async def ended_soon(end: End) -> None:
    """If not, the client must try again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await end.ended()


def test_who_has_not_said_hello_is_told_so(tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        async with stranger(here) as other:
            for said in (b"", b"\xff" * 100, bytes([packets.FRAMES]), packets.OPEN + b"0"):
                other.say(said)
                assert packets.is_bye(await other.hears())
            other.say(b"one", b"two")
            assert packets.is_bye(await other.hears())
            assert not here.ends
            other.say(packets.OPEN)
            assert packets.is_open(await other.hears())
            await here.arrived()

    play(asyncio.run, "zmq+ipc", tmp_path, played)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff",
        packets.OPEN,
        bytes([packets.FRAMES, 1, 0, 0]),
        bytes([packets.FRAMES, 0, 0, 0, 0]),
        bytes([packets.FRAMES, 255, 255, 255, 255]),
        packets.taken(1),
        packets.taken(0) + b"x",
    ],
    ids=["empty", "unknown", "open again", "cut short", "no bytes", "too large", "never sent", "too long"],
)
def test_a_bad_packet_ends_its_wire_after_what_was_good(bad: bytes, tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        client, hub = await here.both()
        async with stranger(here) as other:
            other.say(packets.OPEN)
            assert packets.is_open(await other.hears())
            end = await here.arrived(2)
            for packet in packets.pack([(b"good",)]):
                other.say(packet)
            other.say(bad)
            for packet in packets.pack([(b"too late",)]):
                other.say(packet)
            await end.ended()
            assert end.frames == [b"good"]
            assert len(end.complaints) == 1
            assert packets.is_bye(await other.hears())
        client.wire.send([(b"not my fault",)])
        assert await hub.has(1) == [b"not my fault"]

    play(asyncio.run, "zmq+ipc", tmp_path, played)


def test_who_does_not_wait_is_cut_off(tmp_path: Path) -> None:
    """A hub's memory is bounded, whatever a client does."""

    async def played(here: Place) -> None:
        async with stranger(here) as other:
            other.say(packets.OPEN)
            await other.hears()
            end = await here.arrived()
            end.wire.pause()
            (packet,) = packets.pack([(bytes(packets.PACKET_BYTES // 2),)])
            for _ in range(WINDOW_BYTES // len(packet) + 2):
                other.say(packet)
            await end.ended()
            assert [error.code for error in end.complaints] == ["too_much"]

    play(asyncio.run, "zmq+ipc", tmp_path, played)


def test_a_client_that_vanishes_is_found_at_the_next_word(tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        other = Stranger(here.listener.address)
        other.say(packets.OPEN)
        await other.hears()
        end = await here.arrived()
        for packet in packets.pack([(b"last words",)]):
            other.say(packet)
        await end.has(1)
        other.vanish()
        async with asyncio.timeout(DEADLINE_S):
            while not end.lost_because:
                # The hub's heartbeat.
                end.wire.send([(b"are you there?",)])
                await ended_soon(end)
        assert end.lost_because == ["the client has disconnected"]

    play(asyncio.run, "zmq+ipc", tmp_path, played)


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_a_hub_that_vanishes_is_noticed_after_what_it_said(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        hub = open_socket(zmq.ROUTER)
        hub.bind(f"ipc://{tmp_path}/hub.sock")
        here = Place("zmq+ipc", tmp_path)

        senders: list[bytes] = []

        def answer() -> bool:
            sender, said = hub.recv_multipart(zmq.NOBLOCK)
            assert packets.is_open(said)
            hub.send_multipart([sender, said])
            senders.append(sender)
            return False

        ends: list[End] = []

        def mine(wire: Wire) -> End:
            ends.append(End(wire))
            return ends[-1]

        watch = SocketWatch(hub, answer)
        async with asyncio.timeout(DEADLINE_S):
            await here.transport(None).connect(here.url, mine, max_frame_bytes=MAX_FRAME_BYTES)
        watch.stop()
        for number in range(100):
            for packet in packets.pack([(b"%d" % number,)]):
                hub.send_multipart([senders[0], packet])
        close_socket(hub)
        assert await ends[0].ended() == "the hub ended the connection"
        assert ends[0].frames == [b"%d" % number for number in range(100)]

    run(main())


def test_nobody_takes_the_place_of_another(tmp_path: Path) -> None:
    """With its own key, but under the number of another connection: it is ignored."""

    async def played(here: Place) -> None:
        hub_keys, alice = here.hub_keys, here.client_keys
        assert hub_keys is not None
        assert alice is not None
        hub_keys.make_client("mallory")

        def options(name: str) -> dict[str, int | bytes]:
            public, secret = type(alice)(hub_keys.bundle(name)).curve_pair()
            return {
                "ROUTING_ID": b"a number",
                "CURVE_PUBLICKEY": public,
                "CURVE_SECRETKEY": secret,
                "CURVE_SERVERKEY": hub_keys.hub_curve_key(),
            }

        first = Stranger(here.listener.address, **options("alice"))
        first.say(packets.OPEN)
        await first.hears()
        end = await here.arrived()
        assert end.wire.peer.identity == "key:alice"
        first.vanish()
        (packet,) = packets.pack([(b"I am alice",)])
        while not end.lost_because:
            # Until ZeroMQ has noticed that alice is gone, her number is taken.
            async with stranger(here, **options("mallory")) as other:
                other.say(packet)
                await ended_soon(end)
        assert end.lost_because == ["another connection has replaced it"]
        assert not end.frames

    play(asyncio.run, "zmq+curve", tmp_path, played)


# The process


def test_what_was_sent_leaves_before_the_process_ends(tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", SENDER, here.listener.address, stderr=subprocess.PIPE
        )
        _, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        assert (process.returncode, err) == (0, b"")
        end = await here.arrived()
        await end.ended()
        assert end.frames == [b"%d" % number for number in range(10_000)]

    play(asyncio.run, "zmq+ipc", tmp_path, played)


def test_one_context_for_all(tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        await here.both()
        assert context() is before

    before = context()
    for kind in ("zmq+ipc", "zmq+tcp", "zmq+curve"):
        (tmp_path / kind).mkdir()
        play(asyncio.run, kind, tmp_path / kind, played)
    assert not context().closed


def test_who_is_at_a_socket_file_the_kernel_says(tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        _, hub = await here.both()
        assert (hub.wire.peer.identity, hub.wire.peer.address) == (f"uid:{os.getuid()}", f"process {os.getpid()}")

    play(asyncio.run, "zmq+ipc", tmp_path, played)


def test_two_hubs_with_keys_in_one_process(tmp_path: Path) -> None:
    """Each accepts its own clients, and keeps running when the other ends."""

    async def main() -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        async with place("zmq+curve", tmp_path / "two") as two:
            async with place("zmq+curve", tmp_path / "one") as one:
                await one.both()
                with pytest.raises(ConnectionError):
                    await two.connect(one.client_keys)
            await two.both()

    asyncio.run(main())


def test_questions_that_are_none_are_answered_with_no() -> None:
    for asked in (
        [],
        [b"1.0"],
        [b"1.0", b"7", b"d", b"", b"", b"CURVE"],
        [b"1.0", b"7", b"d", b"", b"", b"CURVE", b"k"],
    ):
        assert authenticator.decide(asked)[2] == b"400"


def test_the_socket_file_goes_with_the_listener(tmp_path: Path) -> None:
    async def played(here: Place) -> None:
        await here.both()
        await here.listener.aclose()
        # At once: another hub may use the address, while connected clients stay here.
        assert not path_of(here.url).exists()
        again = Place("zmq+ipc", tmp_path)
        await again.listen()
        await again.listener.aclose()

    play(asyncio.run, "zmq+ipc", tmp_path, played)
