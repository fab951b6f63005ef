"""Writing and reading without the tasks of nats-py: order, a slow socket, failing handlers, missing parts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol.command import pub_cmd

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from trunkline.brokers.nats import straight
from trunkline.brokers.nats.straight import StraightWriter, listen, read_straight

DEADLINE_S = 60.0
WAYS = ["straight", "nats-py writes", "nats-py without these parts"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == WAYS[1]:
        # As if the socket never took what was written before.
        monkeypatch.setattr(straight, "MAX_BUFFERED", -1)
    elif request.param == WAYS[2]:
        monkeypatch.setattr(straight, "_writer_of", lambda connection: None)
        monkeypatch.setattr(straight, "_has_queue", lambda subscription: False)
    return str(request.param)


def test_the_bus_works_in_each_way(server: NatsServer, way: str) -> None:
    """Plain, stored, grouped, and requests. Waiting publishers are informed when the server has the message."""

    async def test() -> None:
        where = f"{server.url}?synced=true&connect_s=60&namespace=w{WAYS.index(way)}&durable=kept"
        async with asyncio.timeout(DEADLINE_S), tl.connect(where, name="bus") as bus:
            got: dict[str, list[int]] = {"plain": [], "kept": []}

            @bus.on("plain")
            async def take(number: int) -> int:
                got["plain"].append(number)
                return 2 * number

            @bus.on("kept", group="g", durable=True)
            async def store(number: int) -> None:
                got["kept"].append(number)

            await bus.flush()
            for number in range(300):
                await bus.publish("plain", number)
                if number % 7 == 0:
                    await bus.publish("kept", number)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            assert await bus.request("plain", 300, reply=int) == 600
            await bus.flush()
            while len(got["kept"]) < 43:
                assert len(got["plain"]) <= 301
                await asyncio.sleep(0.01)
            assert got["plain"] == list(range(301))
            assert got["kept"] == list(range(0, 300, 7))

    asyncio.run(test())


def receive(connection: Client, data: bytes) -> None:
    """As if the data had arrived from the server."""
    reader: asyncio.StreamReader = connection._transport._io_reader  # type: ignore[union-attr]
    reader.feed_data(data)


async def connected(server: NatsServer) -> Client:
    connection: Client = await nats.connect(server.url)
    return connection


def test_the_order_is_that_of_the_calls(server: NatsServer) -> None:
    """Whether nats-py was called, or was bypassed."""

    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), await connected(server) as connection:
            writer = StraightWriter.of(connection)
            assert writer is not None
            got: list[int] = []
            done = asyncio.Event()

            def take(message: Msg) -> None:
                got.append(int(message.data))
                if got[-1] == 399:
                    done.set()

            listen(connection, "order", take)
            for number in range(400):
                data = str(number).encode()
                if number % 3 == 0:
                    await connection.publish("order", data, headers={"a": "b"})
                else:
                    writer.add(pub_cmd("order", "", data))
                if number % 5 == 0:
                    writer.flush()
                if number % 11 == 0:
                    await asyncio.sleep(0)
            await done.wait()
            assert got == list(range(400))

    asyncio.run(test())


def test_what_is_flushed_leaves_in_the_same_turn(server: NatsServer) -> None:
    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), await connected(server) as connection:
            writer = StraightWriter.of(connection)
            assert writer is not None
            writer.add(pub_cmd("nobody", "", b"x"))
            assert connection.pending_data_size > 0
            writer.flush()
            assert connection.pending_data_size == 0
            # Without a call of flush it leaves in the next turn.
            writer.add(pub_cmd("nobody", "", b"x"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert connection.pending_data_size == 0

    asyncio.run(test())


def test_a_handler_that_fails_is_reported_and_the_next_message_comes(server: NatsServer) -> None:
    async def test() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with asyncio.timeout(DEADLINE_S), await connected(server) as connection:
            done = asyncio.Event()

            def take(message: Msg) -> None:
                if message.data == b"bad":
                    raise ValueError("of the test")
                done.set()

            listen(connection, "fails", take)
            await connection.publish("fails", b"bad")
            await connection.publish("fails", b"good")
            await done.wait()
        assert [context["message"] for context in reported] == ["a message on fails could not be handled"]
        assert isinstance(reported[0]["exception"], ValueError)

    asyncio.run(test())


def test_a_closed_connection_takes_nothing(server: NatsServer) -> None:
    async def test() -> None:
        connection = await connected(server)
        writer = StraightWriter.of(connection)
        assert writer is not None
        await connection.close()
        writer.add(pub_cmd("nobody", "", b"x"))
        writer.flush()
        await asyncio.sleep(0)

    asyncio.run(test())


def test_a_message_that_arrives_alone_is_handled_at_once(server: NatsServer) -> None:
    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), await connected(server) as connection:
            read_straight(connection)
            got: list[Msg] = []
            sid = listen(connection, "alone", got.append)._id
            await connection.flush()
            receive(connection, b"MSG alone %d 3\r\none\r\n" % sid)
            receive(connection, b"MSG alone %d to.me 3\r\ntwo\r\n" % sid)
            assert [(each.subject, each.reply, each.data) for each in got] == [
                ("alone", "", b"one"),
                ("alone", "to.me", b"two"),
            ]

    asyncio.run(test())


@settings(deadline=None, max_examples=30)
@given(
    messages=st.lists(st.binary(max_size=20), max_size=10),
    cuts=st.lists(st.integers(0, 400), max_size=10),
    pauses=st.lists(st.booleans(), min_size=1, max_size=10),
)
def test_messages_arrive_in_order_however_the_data_is_cut(
    server: NatsServer, messages: list[bytes], cuts: list[int], pauses: list[bool]
) -> None:
    """Cut anywhere, also between messages, with or without a turn of the event loop after a piece."""

    async def test() -> None:
        got: list[bytes] = []
        done = asyncio.Event()

        def take(message: Msg) -> None:
            got.append(message.data)
            if message.data == b"the last":
                done.set()

        async with asyncio.timeout(DEADLINE_S), await connected(server) as connection:
            read_straight(connection)
            sid = listen(connection, "cut", take)._id
            await connection.flush()
            all_of_it = [*messages, b"the last"]
            parts = [b"MSG cut %d %d\r\n%b\r\n" % (sid, len(each), each) for each in all_of_it]
            ends = list(itertools.accumulate(map(len, parts)))
            data = b"".join(parts)
            places = sorted({0, *(cut for cut in cuts if cut < len(data)), *ends[::2], len(data)})
            for (start, end), pause in zip(itertools.pairwise(places), itertools.cycle(pauses), strict=False):
                receive(connection, data[start:end])
                if pause:
                    await asyncio.sleep(0)
            await done.wait()
            assert got == all_of_it

    asyncio.run(test())
