"""A request whose answer comes while the one that asked has no connection: on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.test_engine_letters import server_of
from tests.hub.hubs import until
from trunkline.brokers.engine import publishing
from trunkline.brokers.engine.broker import EngineBroker
from trunkline.bus.bus import Bus

DEADLINE_S = 60.0


def engine_of(bus: Bus) -> EngineBroker:
    assert isinstance(bus.broker, EngineBroker)
    return bus.broker


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_an_answer_waits_until_the_one_that_asked_is_back(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        with server_of(kind, tmp_path) as server:
            async with (
                tl.connect(f"{server.url}?synced=true&connect_s=60", name="responder") as responder,
                # It comes back one to two seconds later.
                tl.connect(f"{server.url}?synced=true&connect_s=61&backoff_s=2", name="requester") as requester,
            ):
                began, restarted = asyncio.Event(), asyncio.Event()

                @responder.on("ask")
                async def answer(number: int) -> int:
                    began.set()
                    await restarted.wait()
                    return number + 1

                await responder.flush()
                asked = asyncio.ensure_future(requester.request("ask", 1, timeout_s=DEADLINE_S))
                await began.wait()
                await asyncio.to_thread(server.process.kill)
                await asyncio.to_thread(server.process.start)
                adapter = engine_of(responder).adapter
                await until(lambda: adapter.connects == 2, "the responder is back")
                restarted.set()
                assert await asked == 2
                # The answers that were sent again are forgotten with the next confirmations.
                while adapter._answers:
                    await responder.publish("other", 1)
                    await responder.flush()

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_the_answer_to_a_process_that_has_gone_is_given_up(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "ANSWER_S", 0.5)

    async def test() -> None:
        with server_of(kind, tmp_path) as server:
            async with tl.connect(f"{server.url}?synced=true&connect_s=60", name="responder") as responder:
                began, gone = asyncio.Event(), asyncio.Event()

                @responder.on("ask")
                async def answer(number: int) -> int:
                    began.set()
                    await gone.wait()
                    return number + 1

                await responder.flush()
                async with tl.connect(f"{server.url}?synced=true&connect_s=61", name="requester") as requester:
                    asked = asyncio.ensure_future(requester.request("ask", 1, timeout_s=DEADLINE_S))
                    await began.wait()
                    asked.cancel()
                gone.set()
                adapter = engine_of(responder).adapter
                await until(lambda: adapter.unheard_messages == 1 and not adapter._answers, "it is counted")

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))
