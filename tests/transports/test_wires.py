"""The behaviour of every wire: the same tests over sockets, TLS and ZeroMQ, on both event loops."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transports.wires import DEADLINE_S, FILES, KINDS, LOOPS, End, Place, Run, Scene, place, play
from trunkline.transports.addresses import path_of, place_of
from trunkline.transports.transport import HIGH_BYTES, LOW_BYTES

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


def test_frames_arrive_in_order_and_unchanged_in_both_directions(scene: Play) -> None:
    dice = random.Random(1)
    sizes = [1, 2, 100, 4096, 65_535, 1, 13_000, 300_000, 1, 10 * 1024 * 1024, 7]
    frames = [dice.randbytes(size) for size in sizes]

    async def played(here: Place) -> None:
        client, hub = await here.both()
        for sender, taker in ((client, hub), (hub, client)):
            sender.wire.send([(frame,) for frame in frames[:5]])
            for frame in frames[5:]:
                sender.wire.send([(frame[: len(frame) // 2], memoryview(frame)[len(frame) // 2 :])])
            assert await taker.has(len(frames)) == frames

    scene(played)


def test_ten_thousand_small_frames(scene: Play) -> None:
    frames = [b"%d" % number for number in range(10_000)]

    async def played(here: Place) -> None:
        client, hub = await here.both()
        for at in range(0, len(frames), 10):
            client.wire.send([(frame,) for frame in frames[at : at + 10]])
        hub.wire.send([(frame,) for frame in frames])
        assert await hub.has(len(frames)) == frames
        assert await client.has(len(frames)) == frames

    scene(played)


def test_a_wire_that_is_paused_holds_back_its_sender_and_nobody_else(scene: Play) -> None:
    frame = bytes(10_000)

    async def played(here: Place) -> None:
        slow, slow_hub = await here.both()
        other, other_hub = await here.both()
        for paused, sender in ((slow_hub, slow), (slow, slow_hub)):
            paused.wire.pause()
            sent = 0
            # As much as there is room for on the way, whatever that is, and then some.
            while sender.wire.backlog <= 2 * HIGH_BYTES:
                sender.wire.send([(frame,)] * 10)
                sent += 10
                assert sent * len(frame) < 100 * 1024 * 1024
            other.wire.send([(b"past them",)])
            await other_hub.has(1)
            other_hub.frames.clear()
            assert not paused.frames
            assert not sender.room
            assert sender.wire.backlog > HIGH_BYTES
            paused.wire.resume()
            assert await paused.has(sent) == [frame] * sent
            await sender.until(lambda end: end.room)
            assert sender.wire.backlog < LOW_BYTES

    scene(played)


def test_closing_delivers_what_was_sent_before(scene: Play) -> None:
    frames = [b"%d" % number * 1000 for number in range(2000)]

    async def played(here: Place) -> None:
        for at_hub in (False, True):
            client, hub = await here.both()
            leaving, staying = (hub, client) if at_hub else (client, hub)
            staying.wire.pause()
            leaving.wire.send([(frame,) for frame in frames])
            leaving.wire.close()
            leaving.wire.close()
            leaving.wire.send([(b"too late",)])
            staying.wire.resume()
            await staying.ended()
            assert staying.frames == frames
            assert len(staying.lost_because) == 1
            await leaving.ended()
            assert len(leaving.lost_because) == 1

    scene(played)


def test_breaking_off_is_noticed_at_the_other_side(scene: Play) -> None:
    async def played(here: Place) -> None:
        for at_hub in (False, True):
            client, hub = await here.both()
            breaking, other = (hub, client) if at_hub else (client, hub)
            breaking.wire.send([(bytes(1_000_000),)] * 10)
            breaking.wire.abort()
            breaking.wire.abort()
            breaking.wire.send([(b"too late",)])
            breaking.wire.close()
            assert await breaking.ended()
            assert await other.ended()
            other.wire.send([(b"to nobody",)])
            other.wire.close()
            assert len(breaking.lost_because) == len(other.lost_because) == 1

    scene(played)


def test_garbage_ends_the_connection_it_comes_on_and_no_other(scene: Play) -> None:
    async def played(here: Place) -> None:
        client, hub = await here.both()
        if here.kind in FILES:
            raw = socket.socket(socket.AF_UNIX)
            raw.connect(str(path_of(here.listener.address)))
        else:
            raw = socket.create_connection(place_of(here.listener.address))
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        with raw:
            await loop.sock_sendall(raw, b"\xff" * 1000)
            async with asyncio.timeout(DEADLINE_S):
                try:
                    while await loop.sock_recv(raw, 1000):
                        pass
                except ConnectionError:
                    pass
        client.wire.send([(b"still here",)])
        assert await hub.has(1) == [b"still here"]
        assert not client.lost_because
        assert not hub.lost_because

    scene(played)


def test_many_clients_at_once(scene: Play) -> None:
    async def played(here: Place) -> None:
        clients = await asyncio.gather(*(here.connect() for _ in range(20)))
        await here.arrived(20)
        for number, client in enumerate(clients):
            client.wire.send([(b"%d" % number, bytes(20_000))] * 10)
        for hub in here.ends:
            await hub.has(10)
            assert len(set(hub.frames)) == 1
            hub.wire.send([(hub.frames[0],)])
        assert len({hub.frames[0] for hub in here.ends}) == 20
        for number, client in enumerate(clients):
            assert (await client.has(1))[0] == b"%d" % number + bytes(20_000)

    scene(played)


def test_those_who_are_there_stay_when_nobody_else_may_come(scene: Play) -> None:
    async def played(here: Place) -> None:
        client, hub = await here.both()
        await here.listener.aclose()
        with pytest.raises(OSError, match=r"."):
            await here.connect()
        client.wire.send([(b"still here",)])
        assert await hub.has(1) == [b"still here"]
        hub.wire.send([(b"so am I",)])
        assert await client.has(1) == [b"so am I"]

    scene(played)


def test_nobody_there(run: Run, kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with place(kind, tmp_path) as here:
            pass
        with pytest.raises(ConnectionError if kind not in FILES else OSError):
            await here.connect()

    run(main())


def test_one_listener_at_a_place_and_the_next_when_it_is_gone(run: Run, kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with place(kind, tmp_path) as here:
            address = here.listener.address
            other = Place(kind, tmp_path / "other")
            with pytest.raises(OSError, match=r"in use|already"):
                await other.transport(here.hub_keys).listen(address, lambda wire: End(wire), max_frame_bytes=100)
            assert here.listener.address == address
            client = await here.connect()
            client.wire.send([(b"not disturbed",)])
            # Who wanted to listen has knocked, too: which end is the client's, only its frame tells.
            await here.until(lambda: any(end.frames for end in here.ends))
        listener = await other.transport(here.hub_keys).listen(address, lambda wire: End(wire), max_frame_bytes=100)
        assert listener.address == address
        await listener.aclose()

    run(main())
