"""A request without a responder fails at once, and names similar topics: in one process and through a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from buses import on_bus, until

import trunkline as tl
from tests.hub.hubs import Place
from trunkline.journal import Journal, JournalBroker, JournalSettings
from trunkline.testing import Simulation, simulate, world

Act = Callable[[tl.Bus, tl.Bus], Awaitable[None]]


def in_memory(act: Act) -> None:
    async def main(bus: tl.Bus) -> None:
        await act(bus, bus)

    on_bus(main)


def through_a_hub(act: Act) -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        async with await place.start(), place.bus("asker") as asker, place.bus("server") as server:
            await act(asker, server)

    simulate(main)


@pytest.fixture(params=[in_memory, through_a_hub], ids=["memory", "hub"])
def play(request: pytest.FixtureRequest) -> Callable[[Act], None]:
    run: Callable[[Act], None] = request.param
    return run


def test_it_fails_at_once_with_the_nearest_topics_and_leaves_nothing(play: Callable[[Act], None]) -> None:
    async def act(asker: tl.Bus, server: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        async with server.subscribe("pricing.eu"), server.subscribe("pricing.*.old"), server.subscribe("weather"):
            start = loop.time()
            with pytest.raises(tl.NoResponders) as caught:
                await asker.request("princing.eu", timeout_s=600)
            assert loop.time() - start < 1
            error = caught.value
            assert (error.topic, error.nearest) == ("princing.eu", ("pricing.eu", "pricing.*.old"))
            assert str(error) == (
                "No responders: nobody subscribes to 'princing.eu'; did you mean 'pricing.eu' or 'pricing.*.old'?"
            )
            assert error.retryable
            assert isinstance(error, tl.RequestTimeout)
            assert await asker.try_request("princing.eu", timeout_s=600) is None
            with pytest.raises(tl.NoResponders, match="start the responder, or correct the topic"):
                await asker.request("zzz", timeout_s=600)
        stats = asker.stats()
        assert (stats.open_requests, stats.account.balanced) == (0, True)

    play(act)


def test_it_is_decided_when_it_is_published_not_by_what_was_known_before(play: Callable[[Act], None]) -> None:
    async def act(asker: tl.Bus, server: tl.Bus) -> None:
        for _ in range(3):
            with pytest.raises(tl.NoResponders):
                await asker.request("double", 4)
            async with server.subscribe("double") as stream:
                asking = asyncio.create_task(asker.request("double", 4))
                request = await stream.recv(timeout_s=60)
                assert request is not None
                # The responder leaves before it answers.
                await stream.aclose()
                await server.respond(request, 8)
                assert await asking == 8

    play(act)


def test_of_requests_that_travel_together_all_fail_and_plain_messages_do_not(play: Callable[[Act], None]) -> None:
    async def act(asker: tl.Bus, server: tl.Bus) -> None:
        async def publish() -> str:
            return await asker.publish("nobody", 1)

        asked = [asker.request("nobody", n, timeout_s=600) for n in range(20)]
        results = await asyncio.gather(*asked[:10], publish(), *asked[10:], return_exceptions=True)
        assert [type(each) for each in results] == [tl.NoResponders] * 10 + [str] + [tl.NoResponders] * 10
        assert asker.stats().total_refused == 0, "they were published: nobody got them"

    play(act)


def test_a_request_by_hand_waits_for_whoever_answers(play: Callable[[Act], None]) -> None:
    async def act(asker: tl.Bus, server: tl.Bus) -> None:
        waiting = asyncio.create_task(asker.wait_reply("by-hand", timeout_s=60))
        await asyncio.sleep(0)
        reply_to = asker._requester.reply_topic
        request = tl.Message(topic="nobody", type=tl.MessageType.REQUEST, request_id="by-hand", reply_to=reply_to)
        await asker.post(request)
        await asker.flush()
        assert not waiting.done()
        await server.publish("connected")
        await server.respond(request, "found")
        assert await waiting == "found"

    play(act)


def test_an_early_answer_counts_although_nobody_serves(play: Callable[[Act], None]) -> None:
    async def act(asker: tl.Bus, server: tl.Bus) -> None:
        await asker.post(tl.Message(type=tl.MessageType.RESPONSE, request_id="early", payload=1))
        await asker.flush()
        await until(lambda: len(asker.orphans))
        assert await asker.request("nobody", request_id="early") == 1

    play(act)


def test_a_rule_of_the_router_may_choose_a_handler(play: Callable[[Act], None]) -> None:
    async def act(asker: tl.Bus, server: tl.Bus) -> None:
        async def double(number: int) -> int:
            return 2 * number

        server.router.register_handler("double", double)
        server.router.add_rule(tl.Rule(id="r", topic="math.*", handler="double"))
        async with server.subscribe("later"):
            # Earlier frames on this connection have arrived.
            pass
        assert await asker.request("math.double", 4, timeout_s=60) == 8

    play(act)


def with_a_journal(*acts: Act, folder: Path) -> None:
    """Each act has a new run of the broker, on the same journal."""

    async def main(simulation: Simulation) -> None:
        for act in acts:
            journal = Journal(folder, world=world(simulation), threaded=False)
            async with JournalBroker(journal, owns_journal=True) as broker, tl.Bus(broker) as bus:
                await act(bus, bus)

    simulate(main)


def through_a_hub_with_a_journal(*acts: Act, folder: Path) -> None:
    async def main(simulation: Simulation) -> None:
        for act in acts:
            place = Place(world(simulation), folder)
            async with await place.start(), place.bus("asker") as asker, place.bus("server") as server:
                await act(asker, server)

    simulate(main)


@pytest.fixture(params=[with_a_journal, through_a_hub_with_a_journal], ids=["journal", "hub"])
def play_stored(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    return partial(request.param, folder=tmp_path)


def test_a_stored_request_that_nobody_serves_fails_at_once(play_stored: Callable[..., None]) -> None:
    async def act(asker: tl.Bus, server: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        async with (
            server.subscribe("prices.eu"),
            server.subscribe("prices.us", durable=True, name="american"),
            server.subscribe("jobs.other", durable=True, name="worker"),
        ):
            start = loop.time()
            with pytest.raises(tl.NoResponders) as caught:
                await asker.request("prices.uk", timeout_s=600)
            assert loop.time() - start < 1
            assert {*caught.value.nearest} == {"prices.eu", "prices.us"}
        # It is stored all the same.
        async with server.subscribe("prices.>", start="beginning") as stream:
            message = await stream.recv(timeout_s=60)
            assert message is not None
            assert message.topic == "prices.uk"

    play_stored(act)


def test_a_stored_request_waits_for_a_durable_subscription(play_stored: Callable[..., None]) -> None:
    async def leave(asker: tl.Bus, server: tl.Bus) -> None:
        async with server.subscribe("jobs.>", durable=True, name="worker"):
            pass
        await answered(asker, server)

    async def answered(asker: tl.Bus, server: tl.Bus) -> None:
        asking = asyncio.create_task(asker.request("jobs.late", 4, timeout_s=600))
        await asyncio.sleep(5)
        assert not asking.done()
        async with server.subscribe("jobs.>", durable=True, name="worker") as stream:
            request = await stream.recv(timeout_s=60)
            assert request is not None
            await server.respond(request, 8)
            stream.ack(request)
            assert await asking == 8

    async def forgotten(asker: tl.Bus, server: tl.Bus) -> None:
        assert await server.forget_durable("worker")
        with pytest.raises(tl.NoResponders):
            await asker.request("jobs.late", 4, timeout_s=600)

    # In the second run, nobody has opened it yet.
    play_stored(leave, answered, forgotten)


def test_a_topic_that_is_not_stored_needs_a_live_subscriber(tmp_path: Path) -> None:
    async def main(simulation: Simulation) -> None:
        settings = JournalSettings(durable=("jobs.>",))
        journal = Journal(tmp_path, settings=settings, world=world(simulation), threaded=False)
        async with JournalBroker(journal, owns_journal=True) as broker, tl.Bus(broker) as bus:
            with pytest.raises(tl.NoResponders):
                await bus.request("unstored", timeout_s=600)

    simulate(main)
