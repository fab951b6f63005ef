"""Closing: the last frames arrive, whatever the other side does meanwhile, and no side waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

import trunkline as tl
from tests.hub.attacks import Attacker, said
from tests.hub.lines import Line
from tests.transports.wires import DEADLINE_S, FILES, KINDS, LOOPS, End, Place, Run, play
from trunkline.hub.hub import CLOSE_S, Hub
from trunkline.testing import Simulation
from trunkline.transports.pair import PairTransport
from trunkline.transports.transport import HIGH_BYTES, LINGER_S, Wire
from trunkline.wire import control

T = TypeVar("T")
MESSAGES = 10_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_all_arrives_though_the_reader_is_slow_and_goes_on_talking(run: Run, kind: str, tmp_path: Path) -> None:
    """TCP would discard data in transit if the closing side had unread data.

    TLS cannot be half closed: there, who closes must not be talked to.
    """
    frame = bytes(10_000)

    async def played(here: Place) -> None:
        reader, closing = await here.both()
        reader.wire.pause()
        sent = 0
        while closing.wire.backlog <= HIGH_BYTES:
            closing.wire.send([(frame,)] * 10)
            sent += 10
        closing.wire.send([(b"goodbye",)])
        closing.wire.close()
        for _ in range(10):
            if kind != "tls":
                reader.wire.send([(b"are you there?",)] * 10)
            await asyncio.sleep(0)
        assert not closing.lost_because, "it has not left yet"
        reader.wire.resume()
        assert (await reader.has(sent + 1))[-1] == b"goodbye"
        await closing.ended()
        await reader.ended()

    play(run, kind, tmp_path, played)


async def pair(simulation: Simulation) -> tuple[End, End]:
    ends: list[End] = []

    def mine(wire: Wire) -> End:
        ends.append(End(wire))
        return ends[-1]

    listener = await PairTransport().listen("pair:closing", mine, max_frame_bytes=1000)
    await PairTransport().connect("pair:closing", mine, max_frame_bytes=1000)
    await listener.aclose()
    return ends[0], ends[1]


@pytest.mark.parametrize("paused_before", [True, False])
async def test_a_pair_waits_for_who_is_paused(simulation: Simulation, paused_before: bool) -> None:
    one, other = await pair(simulation)
    if paused_before:
        other.wire.pause()
    one.wire.send([(b"first",), (b"last",)])
    one.wire.close()
    if not paused_before:
        other.wire.pause()
    one.wire.send([(b"too late",)])
    await asyncio.sleep(LINGER_S - 1)
    assert not one.lost_because
    other.wire.resume()
    assert await other.has(2) == [b"first", b"last"]
    assert await one.ended() == "closed"
    await other.ended()
    await asyncio.sleep(2 * LINGER_S)
    assert (len(one.lost_because), len(other.lost_because)) == (1, 1)


async def test_a_pair_does_not_wait_for_ever(simulation: Simulation) -> None:
    one, other = await pair(simulation)
    other.wire.pause()
    one.wire.send([(b"unheard",)])
    one.wire.close()
    began = simulation.now()
    await one.ended()
    await other.ended()
    assert simulation.now() - began == pytest.approx(LINGER_S, abs=0.1)


# A program whose event loop ends when it has closed


def in_thread(main: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """In its own event loop, which ends when `main` returns: unsent data would be lost."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(asyncio.run(main()))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done


@pytest.mark.parametrize("kind", ["unix", "tcp", "zmq+ipc", "zmq+tcp"])
def test_what_a_bus_has_published_arrives_when_it_is_closed(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path / 'hub.sock'}" if kind in FILES else f"{kind}://127.0.0.1:0"

    async def publish(address: str) -> None:
        bus = await tl.connect(address, name="publisher").__aenter__()
        for number in range(MESSAGES):
            await bus.publish("numbers", number)
        await bus.aclose()

    async def main() -> None:
        async with Hub() as hub:
            address = await hub.listen(url)
            async with tl.connect(address, name="subscriber") as bus, bus.subscribe("numbers") as messages:
                publishing = in_thread(lambda: publish(address))
                async with asyncio.timeout(DEADLINE_S):
                    got = [message.decode() async for message in _some(messages, MESSAGES)]
                assert got == list(range(MESSAGES))
                await asyncio.wrap_future(publishing)
                assert messages.account().dropped == 0

    asyncio.run(main())


async def _some(messages: tl.Stream, count: int) -> Any:
    for _ in range(count):
        message = await messages.recv()
        assert message is not None
        yield message


def test_what_a_hub_has_said_arrives_when_it_is_closed() -> None:
    """To a slow reader: the hub's event loop ends with the hub."""
    ready: Future[str] = Future()
    end = threading.Event()

    async def serve() -> None:
        async with Hub() as hub:
            ready.set_result(await hub.listen("tcp://127.0.0.1:0"))
            await asyncio.to_thread(end.wait)

    async def main() -> None:
        serving = in_thread(serve)
        address = await asyncio.wrap_future(ready)
        line = await Line.open(RunningAt(address))  # type: ignore[arg-type]
        line.send(Attacker(1).hello())
        await line.hear_answer(1)
        wanted = control.Subscribe(id=2, subscription=1, pattern="t", name="all", credit=-1, capacity=10_000)
        line.send(said(wanted))
        await line.hear_answer(2)
        async with tl.connect(address, name="publisher") as bus:
            # No more than the hub gives to a wire at once: what waits for room is not said yet.
            await bus.publish_many("t", [bytes(1000)] * 240)
            await bus.flush()
            await bus.publish("t", b"last")
            await bus.flush()
        # The kernel has some of it, the hub the rest; and there is something that the hub has not read.
        end.set()
        for number in range(3, 1000):
            line.send(said(control.Heartbeat(id=number)))
        told: list[dict[str, Any]] = []
        while not told or told[-1]["type"] != "GOODBYE":
            told.append(await line.hear())
        assert told[-1]["reason"] == "the hub is closing"
        with pytest.raises(EOFError):
            await line.hear()
        await line.close()
        await asyncio.wrap_future(serving)
        first, last = line.seqs
        assert last - first == 240

    async def within() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(within())


class RunningAt:
    def __init__(self, address: str) -> None:
        self.addresses = [address]


def test_a_hub_does_not_wait_for_ever_for_who_does_not_read() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        hub = Hub()
        address = await hub.listen("tcp://127.0.0.1:0")
        line = await Line.open(RunningAt(address))  # type: ignore[arg-type]
        line.send(Attacker(1).hello())
        await line.hear_answer(1)
        line.writer.transport.pause_reading()  # type: ignore[attr-defined]
        began = loop.time()
        async with asyncio.timeout(DEADLINE_S):
            await hub.aclose()
        assert CLOSE_S - 0.1 < loop.time() - began < LINGER_S
        line.writer.transport.abort()

    asyncio.run(main())
