"""A request that nobody can answer fails at once, and names similar topics: on every engine, on plain, stored and open
topics. A request on a stored topic waits for a durable subscription whose process is away."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO

import nats
import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.holders import ROOT, holding, said
from tests.brokers.redis_servers import KINDS, RedisServer
from trunkline.brokers.engine.broker import EngineBroker
from trunkline.bus.subscription import Subscription

DEADLINE_S = 60.0
FOR_EVER_S = 600.0
_namespaces = itertools.count()
Act = Callable[[tl.Bus, tl.Bus], Coroutine[None, None, None]]


@pytest.fixture(scope="module", params=["nats", *KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with NatsServer(folder) if request.param == "nats" else RedisServer(request.param, folder) as running:
        yield running.url


@pytest.fixture
def url(server: str) -> str:
    return f"{server}?synced=true&namespace=no{next(_namespaces)}&durable=stored.>&durable=t&open=open.>"


@asynccontextmanager
async def two(url: str) -> AsyncIterator[tuple[tl.Bus, tl.Bus]]:
    """Two buses, each with its own connection."""
    async with (
        asyncio.timeout(DEADLINE_S),
        tl.connect(f"{url}&connect_s=60", name="asker") as asker,
        tl.connect(f"{url}&connect_s=61", name="server") as other,
    ):
        yield asker, other


async def fails(asker: tl.Bus, topic: str) -> tl.NoResponders:
    with pytest.raises(tl.NoResponders) as caught:
        await asker.request(topic, 1, timeout_s=FOR_EVER_S)
    assert caught.value.topic == topic
    return caught.value


async def becomes_unserved(asker: tl.Bus, topic: str) -> None:
    """Ask until nobody is left. A busy kernel may tell the server of a killed process after it sends our request."""
    while True:
        try:
            await asker.request(topic, 1, timeout_s=1.0)
        except tl.NoResponders:
            return
        except tl.RequestTimeout:
            continue
        raise AssertionError(f"{topic} was answered")


def serve(bus: tl.Bus, topic: str) -> None:
    @bus.on(topic)
    async def double(number: int) -> int:
        return 2 * number


@pytest.mark.parametrize("kind", ["plain", "stored", "open"])
def test_it_fails_at_once_with_topics_of_other_processes(kind: str, url: str) -> None:
    async def test() -> None:
        async with two(url) as (asker, other):
            await fails(asker, f"{kind}.prices.eu")
            serve(other, f"{kind}.prices.uk")
            await other.flush()
            assert (await fails(asker, f"{kind}.prices.eu")).nearest == (f"{kind}.prices.uk",)
            assert await asker.request(f"{kind}.prices.uk", 4, timeout_s=DEADLINE_S) == 8

    asyncio.run(test())


@pytest.mark.parametrize("kind", ["plain", "stored", "open"])
def test_it_is_decided_when_it_is_published(kind: str, url: str) -> None:
    async def test() -> None:
        async with two(url) as (asker, other):
            for _ in range(3):
                await fails(asker, f"{kind}.double")
                async with other.subscribe(f"{kind}.double") as stream:
                    await other.flush()
                    asking = asyncio.create_task(asker.request(f"{kind}.double", 4, timeout_s=DEADLINE_S))
                    request = await stream.recv()
                    assert request is not None
                # The responder has left before it answers.
                await other.flush()
                await other.respond(request, 8)
                assert await asking == 8

    asyncio.run(test())


@pytest.mark.parametrize("kind", ["plain", "stored", "open"])
def test_a_handler_that_was_registered_just_before_answers(kind: str, url: str) -> None:
    async def test() -> None:
        async with two(url) as (asker, other):
            for number in range(20):
                serve(asker, f"{kind}.here.{number}")
                assert await asker.request(f"{kind}.here.{number}", number, timeout_s=DEADLINE_S) == 2 * number
                serve(other, f"{kind}.there.{number}")
                await other.flush()
                assert await asker.request(f"{kind}.there.{number}", number, timeout_s=DEADLINE_S) == 2 * number

    asyncio.run(test())


def test_a_stored_request_is_stored_although_it_fails(url: str) -> None:
    async def test() -> None:
        async with two(url) as (asker, other):
            asked = [asker.request("stored.nobody", n, timeout_s=FOR_EVER_S) for n in range(10)]
            published = asker.publish("stored.nobody", 10)
            results = await asyncio.gather(*asked, published, return_exceptions=True)
            assert [type(each) for each in results] == [tl.NoResponders] * 10 + [str]
            async with other.subscribe("stored.>", start="beginning") as stream:
                found = [message.decode() for _ in range(11) if (message := await stream.recv()) is not None]
                assert sorted(found) == list(range(11))

    asyncio.run(test())


@pytest.mark.parametrize("group", [None, "workers"])
def test_a_stored_request_waits_for_a_durable_subscription(group: str | None, url: str) -> None:
    async def test() -> None:
        async with two(url) as (asker, other):
            role = group or "worker"

            def subscribe() -> Subscription:
                if group is not None:
                    return other.subscribe("stored.jobs.>", durable=True, group=group)
                return other.subscribe("stored.jobs.>", durable=True, name=role)

            async with subscribe():
                await other.flush()
            asking = asyncio.create_task(asker.request("stored.jobs.late", 4, timeout_s=DEADLINE_S))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asking), 0.5)
            # Its pattern is named to those who ask for something similar.
            assert (await fails(asker, "stored.job.late")).nearest == ("stored.jobs.>",)
            async with subscribe() as stream:
                request = await stream.recv()
                assert request is not None
                await other.respond(request, 8)
                stream.ack(request)
                assert await asking == 8
            assert await other.forget_durable(role)
            await fails(asker, "stored.jobs.late")

    asyncio.run(test())


def test_a_group_that_is_not_durable_answers_while_it_has_members(url: str) -> None:
    async def test() -> None:
        async with two(url) as (asker, other):
            await fails(asker, "stored.work")
            async with other.subscribe("stored.work", group="g") as stream, other.subscribe("stored.>", start="last"):
                await other.flush()
                asking = asyncio.create_task(asker.request("stored.work", 4, timeout_s=DEADLINE_S))
                request = await stream.recv()
                assert request is not None
                await other.respond(request, 8)
                stream.ack(request)
                assert await asking == 8
            await other.flush()
            await fails(asker, "stored.work")

    asyncio.run(test())


@contextmanager
def listening(url: str, topic: str) -> Iterator[IO[str]]:
    """A process with a plain subscription, which is killed at the end of the block."""
    command = [sys.executable, "-m", "tests.brokers.engine_listener", url, topic]
    listener = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert listener.stdout is not None
        yield listener.stdout
    finally:
        listener.kill()
        listener.communicate()


@pytest.mark.slow
def test_a_killed_process(url: str) -> None:
    """A plain subscriber of a killed process is gone when the server has noticed, a durable one may come back."""

    async def test() -> None:
        async with two(url) as (asker, _):
            for topic in ("plain.t", "stored.t"):
                with listening(url, topic) as output:
                    await said(output, 1)
                    asking = asyncio.create_task(asker.request(topic, 4, timeout_s=FOR_EVER_S))
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(asyncio.shield(asking), 0.3)
                    asking.cancel()
                await becomes_unserved(asker, topic)
            with holding(url, name="holder") as output:
                await said(output, 1)
            asking = asyncio.create_task(asker.request("t", 4, timeout_s=FOR_EVER_S))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asking), 0.5)
            asking.cancel()

    asyncio.run(test())


@pytest.mark.parametrize("server", ["nats"], indirect=True)
def test_the_answer_of_a_stream_is_not_that_nobody_listens(url: str, server: str) -> None:
    """Another program, or another process a moment ago, has a stream store the topic: it answers every publish."""

    async def test() -> None:
        async with two(url) as (asker, other):
            assert isinstance(asker.broker, EngineBroker)
            namespace = asker.broker.adapter.settings.namespace
            stranger = await nats.connect(server)
            await stranger.jetstream().add_stream(name=f"{namespace}x", subjects=[f"{namespace}.seen.>"])
            serve(other, "seen.double")
            await other.flush()
            assert await asker.request("seen.double", 4, timeout_s=DEADLINE_S) == 8
            await stranger.close()

    asyncio.run(test())
