"""Large payloads go through shared memory where that works, without another visible difference.

Real processes and real memory: the hub is one of its own, and subscribers that are killed are, too.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import trunkline as tl
from tests.hub.attacks import framed, said
from tests.hub.frames_taker import taking
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.hubs import connection_of, until
from tests.hub.lines import listen, stats_of
from tests.hub.up import up
from tests.stopped import stop
from trunkline import columns
from trunkline.arrays import NPY
from trunkline.brokers.hub.broker import ConnectionMetrics
from trunkline.codec import decode
from trunkline.hub.config import HubConfig
from trunkline.hub.hub import Hub
from trunkline.hub.session import MAX_SEGMENTS
from trunkline.journal import Reader
from trunkline.message import Message
from trunkline.segments.segment import HEADER_BYTES, SEALS
from trunkline.wire import control, frames
from trunkline.wire.frames import LENGTH, MIN_SHARED_BYTES, DeliverHead, Kind, PublishHead, SharedPayload

SIZE = 65_536
"""Numbers in an array: 512 KiB."""
TOKEN = "0123456789abcdef" * 2
DEADLINE_S = 60.0
_numbers = itertools.count(1)


def bus_at(address: str, name: str = "bus", **settings: Any) -> tl.Bus:
    """With its own connection: buses with the same settings share one."""
    own = tl.ConnectionSettings(connect_s=20.0 + next(_numbers) / 1000, backoff_s=0.01, max_backoff_s=0.1, **settings)
    return tl.connect(address, name=name, connection=own)


def metrics(bus: tl.Bus) -> ConnectionMetrics:
    assert isinstance(bus.broker, tl.HubBroker)
    return bus.broker.metrics()


def frame(number: int) -> np.ndarray[Any, Any]:
    return np.arange(number, number + SIZE)


async def next_of(stream: tl.Stream) -> tl.Message:
    message = await stream.recv()
    assert message is not None
    return message


def play(tmp_path: Path, story: Callable[[RunningHub], Coroutine[Any, Any, None]], **options: Any) -> None:
    """With a hub in its own process, which must end without errors."""

    async def told(hub: RunningHub) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story(hub)

    with running_hub(tmp_path, listen=listen(tmp_path), **options) as hub:
        asyncio.run(told(hub))
        hub.end()
        assert "Traceback" not in hub.logged()


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


TABLE = pa.table({"number": range(SIZE), "text": ["x" * 10] * SIZE})
VALUES: list[Any] = [frame(0), frame(5).reshape(256, -1).T, TABLE, b"abcdefgh" * SIZE, {"list": list(range(4 * SIZE))}]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other) and not other.flags.writeable
    return bool(one.equals(other)) if isinstance(one, pa.Table) else type(one) is type(other) and one == other


@pytest.mark.parametrize("on", [True, False])
def test_the_same_subscriber_gets_the_same_payloads_either_way(tmp_path: Path, on: bool) -> None:
    async def story(hub: RunningHub) -> None:
        got: list[Any] = []
        async with bus_at(hub.address, "from", shared_memory=on) as publisher, bus_at(hub.address, "to") as subscriber:

            @subscriber.on("values")
            async def take(value: Any) -> None:
                got.append(value)

            @subscriber.on("double")
            async def double(value: np.ndarray) -> Any:
                return value * 2

            await subscriber.flush()
            for value in VALUES:
                await publisher.publish("values", value)
            await publisher.publish_many("values", VALUES)
            async with publisher.pipeline() as pipe:
                for value in VALUES:
                    await pipe.publish("values", value)
            await until(lambda: len(got) == 3 * len(VALUES), "all have arrived")
            await publisher.publish("values", VALUES[0], priority=80, headers={"a": "b"}, ttl_s=60)
            answer = await publisher.request("double", frame(3), reply=np.ndarray)
            assert same(frame(3) * 2, answer)
            await until(lambda: len(got) == 3 * len(VALUES) + 1, "all have arrived")
            assert all(map(same, [*VALUES * 3, VALUES[0]], got))
            # The values, and the request; the answer came from the other side.
            assert metrics(publisher).shared == (17 if on else 0)
            assert metrics(subscriber).mapped == (17 if on else 0)
            assert metrics(publisher).not_shared == 0
            if on:
                assert metrics(publisher).bytes_out < SIZE

    play(tmp_path, story)


@pytest.mark.parametrize("journal", [False, True])
def test_fates_and_books_are_the_same_either_way(tmp_path: Path, journal: bool) -> None:
    async def story(hub: RunningHub) -> None:
        told: list[Any] = []
        for on in (True, False):
            async with bus_at(hub.address, "from", shared_memory=on) as publisher, bus_at(hub.address, "to") as taker:

                @taker.on("frames", name="fails")
                async def fails(value: np.ndarray) -> None:
                    raise tl.Reject("no")

                async with (
                    taker.subscribe("frames", name="plain") as plain,
                    taker.subscribe("frames", name="member", group="team", ack=True) as member,
                    taker.subscribe("frames", name="old", capacity=1, overflow="drop_oldest") as old,
                ):
                    ids = [await publisher.publish("frames", frame(number)) for number in range(3)]
                    for _ in range(3):
                        await next_of(plain)
                        member.ack(await next_of(member))
                    await until(lambda old=old: old.account().accepted == 3, "all have arrived")  # type: ignore[misc]
                    assert (await next_of(old)).id == ids[-1]
                    await until(lambda: taker.dead_letters.total == 3, "all have died")
                    await taker.flush()
                    explained = [await publisher.explain(message_id) for message_id in ids]
                    # A drop in the inbox has another reason than one in the hub, before the inbox has room.
                    fates = [
                        sorted(
                            (each.subscriber, each.fate.value, each.reason.partition(":")[0]) for each in one.outcomes
                        )
                        for one in explained
                    ]
                    accounts = [stream.account() for stream in (plain, member, old)]
                    letters = [(letter.cause, letter.reason) for letter in taker.dead_letters]
                    assert all(type(letter.message.payload) is bytes for letter in taker.dead_letters)
                    assert all(account.balanced for account in accounts)
                    told.append((fates, accounts, letters))
                assert (metrics(taker).mapped > 0) is on
        assert told[0] == told[1]

    play(tmp_path, story, journal=tmp_path / "journal" if journal else None)


def test_the_journal_keeps_the_bytes(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with bus_at(hub.address, "from") as publisher, bus_at(hub.address, "to") as subscriber:
            async with subscriber.subscribe("frames") as plain:
                await publisher.publish("frames", frame(0))
                assert same(frame(0), (await next_of(plain)).decode())
            await publisher.publish("frames", frame(1))
            await publisher.publish("frames", b"raw data" * SIZE)
            async with subscriber.subscribe("frames", durable=True, name="late", start="beginning") as late:
                got = [(await next_of(late)).decode() for _ in range(3)]
            assert all(map(same, [frame(0), frame(1), b"raw data" * SIZE], got))
            last = await publisher.last("frames")
            assert last is not None
            assert last.payload == b"raw data" * SIZE
            assert metrics(publisher).shared == 3

    play(tmp_path, story, journal=tmp_path / "journal")
    with Reader(tmp_path / "journal") as reader:
        stored = list(reader.messages("frames"))
    assert all(map(same, [frame(0), frame(1), b"raw data" * SIZE], (message.decode() for message in stored)))


def test_whoever_cannot_map_gets_it_inline(tmp_path: Path) -> None:
    """Over TCP, with the setting off, and with a client that does not support it: beside one that maps."""

    async def story(hub: RunningHub) -> None:
        unix, tcp = hub.addresses
        async with (
            bus_at(unix, "from") as publisher,
            bus_at(unix, "maps") as maps,
            bus_at(unix, "off", shared_memory=False) as off,
            bus_at(tcp, "tcp") as far,
            maps.subscribe("frames") as mapped,
            off.subscribe("frames") as inline,
            far.subscribe("frames") as distant,
        ):
            old = await Bare.open(unix)
            old.send(said(control.Subscribe(id=2, subscription=1, pattern="frames", name="old", credit=-1)))
            await old.hear()
            for number in range(3):
                await publisher.publish("frames", frame(number))
                for stream in (mapped, inline, distant):
                    assert same(frame(number), (await next_of(stream)).decode())
                head, body = await old.delivered()
                (message,) = columns.read("frames", body, [head.first])
                assert same(frame(number), message.decode())
            assert metrics(publisher).shared == metrics(maps).mapped == 3
            assert metrics(off).mapped == metrics(far).mapped == 0
            # From far away it is published inline.
            await far.publish("frames", frame(9))
            assert same(frame(9), (await next_of(mapped)).decode())
            assert metrics(far).shared == metrics(far).not_shared == 0
            await old.close()

    play(tmp_path, story)


def test_who_takes_payloads_gets_bytes(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with bus_at(hub.address) as bus, bus.subscribe("frames") as messages:
            payloads: list[Any] = []
            taking = messages.payloads()

            async def publish() -> None:
                for number in range(3):
                    await bus.publish("frames", b"small")
                    await bus.publish("frames", frame(number))

            # It begins when a reader takes.
            publishing = asyncio.create_task(publish())
            async for batch in taking:
                payloads += batch
                if len(payloads) == 6:
                    break
            await taking.aclose()
            await publishing
            assert {type(payload) for payload in payloads} == {bytes}
            assert payloads[::2] == [b"small"] * 3
            assert all(same(frame(each), decode(payload, NPY)) for each, payload in enumerate(payloads[1::2]))
            assert metrics(bus).mapped == 3
            assert messages.account().delivered == 6

    play(tmp_path, story)


def test_sizes_around_the_least_one(tmp_path: Path) -> None:
    """Header fields do not count, and the hub accepts what the client sends."""

    async def story(hub: RunningHub) -> None:
        async with bus_at(hub.address, shared_memory_min_bytes=1) as bus, bus.subscribe("frames") as messages:
            for size in (MIN_SHARED_BYTES - 1, MIN_SHARED_BYTES + 1):
                for headers in (None, {"a": "x" * 1000}):
                    await bus.publish("frames", bytes(size), headers=headers)
                    assert len((await next_of(messages)).payload) == size
            assert metrics(bus).shared == metrics(bus).mapped == 2
            assert metrics(bus).not_shared == 0

    play(tmp_path, story)


def test_a_hub_can_turn_it_off(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with bus_at(hub.address) as bus, bus.subscribe("frames") as messages:
            await bus.publish("frames", frame(0))
            assert same(frame(0), (await next_of(messages)).decode())
            assert (metrics(bus).shared, metrics(bus).mapped) == (0, 0)

    play(tmp_path, story, settings={"shared_memory": False})
    assert HubConfig().settings().shared_memory
    assert not HubConfig(shared_memory=False).settings().shared_memory


def test_a_member_that_is_killed_leaves_its_message_to_another(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with bus_at(hub.address, "from") as publisher:
            with taking(hub.address, "killed", group="team", hold=True) as killed:
                await publisher.publish("frames", frame(7))
                told = [str(7), str(frame(7).sum()), "memoryview"]
                assert await asyncio.to_thread(killed.line) == told
                with taking(hub.address, "heir", group="team") as heir:
                    killed.kill()
                    assert await asyncio.to_thread(heir.line) == told

    play(tmp_path, story)


PUBLISHER = """
import asyncio, sys
import numpy as np
import trunkline as tl

async def main():
    async with tl.connect(sys.argv[1], name="from") as bus:
        await bus.publish("frames", np.arange(7, 7 + 65_536))
        await bus.flush()
        print(bus.broker.metrics().shared, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_what_was_published_outlives_its_publisher(tmp_path: Path) -> None:
    """The subscriber is stopped before it has opened anything."""

    async def story(hub: RunningHub) -> None:
        with taking(hub.address, "stopped") as stopped:
            stop(stopped.process.pid)
            publisher = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PUBLISHER, hub.address, stdout=asyncio.subprocess.PIPE
            )
            assert publisher.stdout is not None
            assert await publisher.stdout.readline() == b"1\n"
            publisher.kill()
            await publisher.communicate()
            stopped.process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(stopped.line) == ["7", str(frame(7).sum()), "memoryview"]

    play(tmp_path, story)


def test_without_a_free_segment_it_goes_inline_until_somebody_lets_go(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with (
            bus_at(hub.address, "from", shared_memory_pool_bytes=2 * 1024 * 1024) as publisher,
            bus_at(hub.address, "to") as subscriber,
            subscriber.subscribe("frames") as messages,
        ):
            held: list[Any] = []
            for number in range(10):
                await publisher.publish("frames", frame(number))
                held.append((await next_of(messages)).decode())
            assert all(map(same, map(frame, range(10)), held)), "nothing that is held was written again"
            assert metrics(publisher).shared == metrics(subscriber).mapped == 3
            assert metrics(publisher).not_shared == 7
            held.clear()
            await subscriber.flush()
            await publisher.publish("frames", frame(11))
            assert same(frame(11), (await next_of(messages)).decode())
            assert metrics(publisher).shared == 4
            assert messages.account().delivered == 11

    play(tmp_path, story)


def test_what_a_killed_subscriber_held_is_free_again(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with bus_at(hub.address, "from", shared_memory_pool_bytes=1024 * 1024) as publisher:
            with taking(hub.address, "holds", hold=True) as holder:
                for number in range(3):
                    await publisher.publish("frames", frame(number))
                    assert (await asyncio.to_thread(holder.line))[:2] == [str(number), str(frame(number).sum())]
                assert (metrics(publisher).shared, metrics(publisher).not_shared) == (1, 2)
            with taking(hub.address, "next") as taker:
                for number in range(20):
                    await publisher.publish("frames", frame(number))
                    assert (await asyncio.to_thread(taker.line))[0] == str(number)
            assert metrics(publisher).shared >= 10

    play(tmp_path, story)


def test_a_cancelled_publish_frees_its_memory(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with (
            bus_at(hub.address, "from", shared_memory_pool_bytes=2 * 1024 * 1024) as publisher,
            bus_at(hub.address, "to") as subscriber,
            subscriber.subscribe("frames", capacity=1) as messages,
        ):
            await publisher.publish("frames", frame(0))
            before = (await stats_of(subscriber))["waiting"]
            for number in range(1, 20):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await publisher.publish("frames", frame(number))
                await publisher.flush()
            assert (await stats_of(subscriber))["waiting"] == before
            assert metrics(publisher).not_shared == 0, "each was withdrawn, and its memory used again"
            assert same(frame(0), (await next_of(messages)).decode())
            await publisher.publish("frames", frame(30))
            assert same(frame(30), (await next_of(messages)).decode())

    play(tmp_path, story)


def test_nothing_is_left_open(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        pid = hub.process.pid
        async with bus_at(hub.address, "from") as publisher:
            assert (await stats_of(publisher))["clients"] == 1
            before = descriptors(pid)
            own = descriptors(os.getpid())
            async with bus_at(hub.address, "to") as subscriber, subscriber.subscribe("frames") as messages:
                for number in range(1000):
                    await publisher.publish("frames", frame(number))
                    assert (await next_of(messages)).decode()[0] == number
                assert metrics(publisher).shared == 1000
            for options in ({}, {"hold": True}, {"hold": True, "group": "team"}):
                with taking(hub.address, "killed", **options) as taker:
                    for number in range(5):
                        await publisher.publish("frames", frame(number))
                        assert (await asyncio.to_thread(taker.line))[0] == str(number)
            await until(lambda: descriptors(pid) == before, "the hub has closed all of it")
            assert (await stats_of(publisher))["clients"] == 1
        gc.collect()
        # The connection and what belonged to it are gone.
        assert descriptors(os.getpid()) < own

    play(tmp_path, story)


def test_memory_that_is_gone_is_on_record(tmp_path: Path) -> None:
    """The hub has closed the segment before its subscriber has opened it."""

    async def story() -> None:
        async with Hub() as hub:
            address = await hub.listen(f"unix://{tmp_path / 'hub.sock'}")
            async with (
                bus_at(address, "from") as publisher,
                bus_at(address, "to") as subscriber,
                subscriber.subscribe("frames", name="plain") as messages,
                subscriber.subscribe("frames", name="member", group="team", ack=True) as member,
            ):
                wire = connection_of(subscriber)._wire
                assert wire is not None
                wire.pause()
                lost = await publisher.publish("frames", frame(0))
                await publisher.flush()
                (session,) = (each for each in hub.sessions.values() if each.shared)
                await until(lambda: len(session.shared) == 2, "both were delivered")
                numbers = [segment.descriptor for segment in session.shared.values()]
                session.shared.clear()
                for held in session.members.values():
                    held._held[next(iter(held._held))].payload.obj.segment = None
                await until(lambda: not any(map(is_memory, numbers)), "the hub has closed it")
                wire.resume()
                await publisher.publish("frames", frame(1))
                assert same(frame(1), (await next_of(messages)).decode())
                member.ack(await next_of(member))
                await subscriber.flush()
                explained = await publisher.explain(lost)
                assert {(each.subscriber, each.fate, each.reason) for each in explained.outcomes} == {
                    ("plain", tl.Fate.DROPPED, "it could not be read"),
                    ("member", tl.Fate.DROPPED, "it could not be read"),
                }
                assert metrics(subscriber).malformed == 2
                account = messages.account()
                assert (account.accepted, account.delivered, account.dropped) == (2, 1, 1)

    asyncio.run(story())


def is_memory(descriptor: int) -> bool:
    try:
        return "memfd" in os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return False


def test_nothing_durable_is_lost_when_the_hub_is_killed(tmp_path: Path) -> None:
    stored: list[int] = []
    handled: list[int] = []

    async def story(hub: Any) -> None:
        async with bus_at(hub.address, "from") as publisher, bus_at(hub.address, "to") as subscriber:

            @subscriber.on("frames", name="keeper", durable=True)
            async def keep(value: np.ndarray) -> None:
                assert np.array_equal(value, frame(int(value[0])))
                handled.append(int(value[0]))

            await subscriber.flush()
            over = asyncio.Event()

            async def publish(number: int) -> None:
                while not over.is_set():
                    await publisher.publish("frames", frame(number))
                    stored.append(number)
                    number += 1

            publishing = [asyncio.ensure_future(publish(worker * 1_000_000)) for worker in range(3)]
            for _ in range(3):
                before = len(stored)
                await until(lambda before=before: len(stored) > before + 10, "it goes on")  # type: ignore[misc]
                hub.kill()
                await asyncio.to_thread(hub.start)
            over.set()
            await asyncio.gather(*publishing)
            await until(lambda: set(handled) >= set(stored), "everything that was stored was handled")
            assert metrics(publisher).shared > 0

    with up(tmp_path, durable=True) as hub:
        asyncio.run(story(hub))
        assert hub.end() == 0
    with Reader(tmp_path / "journal") as reader:
        kept = [int(message.decode()[0]) for message in reader.messages("frames")]
    assert len(kept) == len(set(kept))
    assert set(kept) >= set(stored)


def test_a_hub_in_this_process(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hub() as hub:
            address = await hub.listen(f"unix://{tmp_path / 'hub.sock'}")
            async with bus_at(address, "from") as publisher, bus_at(address, "to") as subscriber:
                async with (
                    tl.Bus(hub.broker, name="local") as local,
                    subscriber.subscribe("frames") as far,
                    subscriber.subscribe("frames", group="team") as member,
                    local.subscribe("frames") as near,
                ):
                    for number in range(20):
                        await publisher.publish("frames", frame(number))
                        for stream in (far, member, near):
                            assert same(frame(number), (await next_of(stream)).decode())
                    assert metrics(publisher).shared == 20
                    assert metrics(subscriber).mapped == 40
                    # What was published here goes inline.
                    await local.publish("frames", frame(30))
                    assert same(frame(30), (await next_of(far)).decode())
                    assert metrics(subscriber).mapped == 40
                await local.aclose()

    asyncio.run(story())


def test_a_child_of_both_does_no_harm(tmp_path: Path) -> None:
    async def story(hub: RunningHub) -> None:
        async with (
            bus_at(hub.address, "from") as publisher,
            bus_at(hub.address, "to") as subscriber,
            subscriber.subscribe("frames") as messages,
        ):
            await publisher.publish("frames", frame(0))
            held = (await next_of(messages)).decode()
            child = os.fork()
            if not child:
                os._exit(0)
            assert await asyncio.to_thread(os.waitpid, child, 0) == (child, 0)
            assert same(frame(0), held)
            for number in range(5):
                await publisher.publish("frames", frame(number))
                assert same(frame(number), (await next_of(messages)).decode())
            assert metrics(publisher).shared == 6

    play(tmp_path, story)


# What a client may try


class Bare:
    """A connection of raw frames on the unix socket. With a `probe` it offers its memory."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str, probe: control.Probe | None = None) -> Bare:
        bare = cls(*await asyncio.open_unix_connection(address.removeprefix("unix://")))
        bare.send(said(control.Hello(id=1, versions=[1], name="bare", at_ns=time.time_ns(), memory=probe)))
        welcome = await bare.hear()
        assert welcome["type"] == "WELCOME"
        assert welcome.get("shares", False) is (probe is not None)
        return bare

    def send(self, *messages: bytes) -> None:
        self._writer.write(b"".join(map(framed, messages)))

    async def _frame(self) -> bytes:
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return await self._reader.readexactly(size)

    async def hear(self) -> Any:
        while (frame := await self._frame())[0] != Kind.CONTROL:
            pass
        return json.loads(frame[1:])

    async def delivered(self) -> tuple[DeliverHead, memoryview]:
        while (frame := await self._frame())[0] != Kind.DELIVER:
            assert frame[0] == Kind.CONTROL
        return frames.open_deliver(memoryview(frame))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def memfd(size: int, seals: int = SEALS, token: str = TOKEN) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, HEADER_BYTES + size)
    os.pwrite(descriptor, token.encode(), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def shared_frame(number: int, descriptor: int, size: int = 100_000, token: str = TOKEN, count: int = 1) -> bytes:
    message = Message(id=f"m{number}", topic="frames", payload=b"", sender="bare")
    payload = SharedPayload(descriptor, size, token, columns.pack_batch([message]))
    return frames.publish_shared(PublishHead(number, "frames", count), payload)


def test_memory_that_is_not_what_it_is_said_to_be_is_refused(tmp_path: Path) -> None:
    """The client gets an error, the batch is refused, and other clients are not affected."""

    async def story(hub: RunningHub) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(TOKEN.encode() + bytes(200_000))
            good = memfd(100_000)
            probe = control.Probe(descriptor=good, size=100_000, token=TOKEN)
            opened = [good, memfd(99_999), memfd(100_000, fcntl.F_SEAL_GROW), memfd(100_000, token="f" * 32)]
            unused = max(opened) + 100
            bad = [*opened[1:], file.fileno(), unused, 0]
            before = descriptors(hub.process.pid)
            async with bus_at(hub.address, "to") as subscriber, subscriber.subscribe("frames") as messages:
                bare = await Bare.open(hub.address, probe)
                numbers = itertools.count(1)
                for descriptor in bad:
                    number = next(numbers)
                    bare.send(shared_frame(number, descriptor))
                    error = await bare.hear()
                    assert (error["type"], error["code"], error["batch"]) == ("ERROR", "memory", number)
                # More than one message, too little, too much, a body that is none.
                for wrong in (
                    shared_frame(next(numbers), good, count=2),
                    shared_frame(next(numbers), good, size=10),
                    shared_frame(next(numbers), good, size=2**40),
                    frames.publish(PublishHead(next(numbers), "frames", 1), b"\x90" * 20).replace(b"\x02", b"\x04", 1),
                ):
                    bare.send(wrong)
                    assert (await bare.hear())["code"] in ("malformed", "too_large")
                bare.send(shared_frame(next(numbers), good))
                message = await next_of(messages)
                assert message.payload == bytes(100_000)
                assert messages.account().accepted == 1
                # Without having offered its own, a client may name none.
                poor = await Bare.open(hub.address)
                poor.send(shared_frame(1, good))
                assert (await poor.hear())["code"] == "memory"
                await bare.close()
                await poor.close()
            await until(lambda: descriptors(hub.process.pid) <= before, "nothing is left open")
            for descriptor in opened:
                os.close(descriptor)

    play(tmp_path, story)


def test_a_publisher_cannot_use_up_the_descriptors_of_its_hub(tmp_path: Path) -> None:
    """No subscriber takes its payloads: beyond a limit, the hub copies them."""

    async def story(hub: RunningHub) -> None:
        descriptor = memfd(100_000)
        probe = control.Probe(descriptor=descriptor, size=100_000, token=TOKEN)
        async with bus_at(hub.address, "to") as subscriber, subscriber.subscribe("frames", group="team", ack=True):
            bare = await Bare.open(hub.address, probe)
            before = descriptors(hub.process.pid)
            for number in range(1, MAX_SEGMENTS + 100):
                bare.send(shared_frame(number, descriptor))
            bare.send(said(control.Heartbeat(id=99)))
            while (await bare.hear()).get("re") != 99:
                pass
            assert descriptors(hub.process.pid) <= before + 2 * MAX_SEGMENTS + 10
            await bare.close()
        os.close(descriptor)

    play(tmp_path, story)


def test_bytes_that_change_after_they_were_published_do_no_harm(tmp_path: Path) -> None:
    """The publisher owns the memory: decoded values may change, and nothing else happens."""

    async def story(hub: RunningHub) -> None:
        payload = Message(topic="frames", payload=frame(0)).payload
        descriptor = memfd(len(payload))
        os.pwrite(descriptor, payload, HEADER_BYTES)
        probe = control.Probe(descriptor=descriptor, size=len(payload), token=TOKEN)
        async with bus_at(hub.address, "to") as subscriber, subscriber.subscribe("frames") as messages:
            bare = await Bare.open(hub.address, probe)
            message = Message(id="m", topic="frames", payload=frame(0), sender="bare")
            named = SharedPayload(descriptor, len(payload), TOKEN, columns.pack_envelope(message))
            bare.send(frames.publish_shared(PublishHead(1, "frames", 1), named))
            got = await next_of(messages)
            array = got.decode()
            assert same(frame(0), array)
            # All of it, the header of the array and the token, too.
            os.pwrite(descriptor, os.urandom(HEADER_BYTES + len(payload)), 0)
            assert array.shape == (SIZE,)
            assert array.sum() is not None
            with pytest.raises(tl.InvalidPayload):
                got.decode()
            # A reader that needs certainty copies first.
            assert len(bytes(got.payload)) == len(payload)
            await bare.close()
        os.close(descriptor)

    play(tmp_path, story)
