from __future__ import annotations

import asyncio

import msgspec
import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline.delivery.breaker import Breaker
from trunkline.delivery.requests import Why
from trunkline.hooks import CircuitBreaker
from trunkline.testing import Simulation, world

pytestmark = pytest.mark.usefixtures("both_ways")


class Quote(msgspec.Struct):
    sku: str


class Price(msgspec.Struct):
    amount: float


def test_request_gets_the_typed_answer() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[tl.Message] = []

        @bus.on("pricing")
        async def price(quote: Quote, message: tl.Message) -> Price:
            seen.append(message)
            return Price(len(quote.sku) * 1.5)

        async with bus.subscribe("_reply.>") as answers:
            assert await bus.request("pricing", Quote("abcd"), reply=Price) == Price(6.0)
            assert await bus.request("pricing", Quote("ab"), correlation_id="batch-1") == {"amount": 3.0}
            answer = await bus.request("pricing", Quote("a"), reply=tl.Message, request_id="req-123")
            assert (answer.type, answer.request_id) == (tl.MessageType.RESPONSE, "req-123")
            assert answer.recipient == bus.name
            asked, correlated, named = seen
            assert asked.type is tl.MessageType.REQUEST
            assert asked.request_id
            assert named.request_id == "req-123"
            first, second, _ = [answers.try_recv() for _ in range(3)]
            assert first.request_id == asked.request_id
            assert second.correlation_id == correlated.correlation_id == "batch-1"
        assert bus.stats().open_requests == 0
        assert len(bus.orphans) == 0

    on_bus(main)


def test_answer_sent_before_request_returns_is_not_lost() -> None:
    """The fastest responder answers while the request is being published."""

    async def main(bus: tl.Bus) -> None:
        answers: list[asyncio.Task[str]] = []

        def answer(message: tl.Message) -> None:
            answers.append(asyncio.ensure_future(bus.respond(message, "at once")))

        stop = bus.broker.tap("now", answer)
        assert await bus.request("now") == "at once"
        stop()
        await asyncio.gather(*answers)

    on_bus(main)


def test_timeout_raises_or_gives_none_and_leaves_nothing() -> None:
    async def main(bus: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        async with bus.subscribe("silent"):
            with pytest.raises(tl.RequestTimeout, match=r"Request timeout") as caught:
                await bus.request("silent", timeout_s=5)
            assert not isinstance(caught.value, tl.NoResponders)
            assert loop.time() == pytest.approx(5.0)
            assert caught.value.retryable
            assert await bus.try_request("silent", timeout_s=5) is None
            start = loop.time()
            with pytest.raises(tl.RequestTimeout):
                await bus.request("silent")
            assert loop.time() - start == pytest.approx(30.0)
        assert bus.stats().open_requests == 0

    on_bus(main)


def test_many_timeouts_share_a_timer_and_each_rings_in_time() -> None:
    async def main(bus: tl.Bus) -> None:
        bus.broker.tap("silent", lambda message: None)
        loop = asyncio.get_running_loop()

        async def ask(timeout_s: float) -> float:
            await bus.try_request("silent", timeout_s=timeout_s)
            return loop.time()

        wanted = [3.0, 1.0, 2.0, 1.0, 0.5, 3.0]
        assert await asyncio.gather(*map(ask, wanted)) == pytest.approx(wanted)

    on_bus(main)


def test_cancelled_request_leaves_nothing() -> None:
    async def main(bus: tl.Bus) -> None:
        bus.broker.tap("silent", lambda message: None)
        task = asyncio.create_task(bus.request("silent"))
        await until(lambda: bus.stats().open_requests == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bus.stats().open_requests == 0

    on_bus(main)


def test_failing_responder_is_an_error_at_once() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("broken", retry=tl.Retry(attempts=1))
        async def broken() -> None:
            raise KeyError("no such sku")

        @bus.on("typed", retry=tl.Retry(attempts=1))
        async def typed(quote: Quote) -> object:
            return object()

        with pytest.raises(tl.RequestFailed, match="KeyError: 'no such sku'") as caught:
            await bus.request("broken")
        assert caught.value.error_type == "KeyError"
        with pytest.raises(tl.RequestFailed, match="InvalidPayload"):
            await bus.request("typed", {"nonsense": 1})
        with pytest.raises(tl.RequestFailed, match="EncodeError"):
            await bus.request("typed", Quote("a"))
        assert asyncio.get_running_loop().time() < 1
        assert len(bus.dead_letters) == 3

    on_bus(main)


def test_error_text_that_is_too_long_is_cut_not_lost() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("t", retry=tl.Retry(attempts=1))
        async def talks() -> None:
            raise ValueError("x" * 100_000)

        with pytest.raises(tl.RequestFailed) as caught:
            await bus.request("t")
        assert len(caught.value.detail) == 10_000

    on_bus(main, settings=tl.Settings(max_message_bytes=20_000))


def test_retrying_responder_answers_in_the_end() -> None:
    async def main(bus: tl.Bus) -> None:
        calls: list[int] = []

        @bus.on("flaky", retry=tl.Retry(attempts=3))
        async def flaky(message: tl.Message) -> int:
            calls.append(message.attempts)
            if len(calls) < 3:
                raise ConnectionError
            return len(calls)

        assert await bus.request("flaky") == 3
        assert calls == [0, 1, 2]

    on_bus(main)


def test_answer_of_a_wrong_type_is_an_error() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("pricing")
        async def price() -> str:
            return "a lot"

        with pytest.raises(tl.InvalidPayload, match="Price"):
            await bus.request("pricing", reply=Price)
        assert bus.stats().open_requests == 0

    on_bus(main)


def test_second_answer_is_a_late_orphan() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("who", name="fast")
        async def fast() -> str:
            return "fast"

        @bus.on("who", name="slow")
        async def slow() -> str:
            await asyncio.sleep(1)
            return "slow"

        assert await bus.request("who", request_id="r1") == "fast"
        await asyncio.sleep(2)
        (orphan,) = bus.orphans
        assert orphan.why is Why.LATE
        assert orphan.message.decode() == "slow"
        assert bus.orphans.find(request_id="r1") == [orphan]
        assert bus.orphans.find(request_id="r2") == []
        await asyncio.sleep(61)
        assert len(bus.orphans) == 0

    on_bus(main)


def test_early_answers_are_claimed_in_order_by_the_request_that_comes() -> None:
    async def main(bus: tl.Bus) -> None:
        for n in (1, 2):
            await bus.post(tl.Message(type=tl.MessageType.RESPONSE, request_id="req-123", payload=n))
        assert [orphan.why for orphan in bus.orphans] == [Why.EARLY, Why.EARLY]
        assert await bus.wait_reply("req-123", reply=int, timeout_s=1) == 1
        (left,) = bus.orphans
        assert left.message.decode() == 2
        assert await bus.wait_reply("req-123") == 2
        assert len(bus.orphans) == 0
        with pytest.raises(tl.RequestTimeout):
            await bus.wait_reply("req-123", timeout_s=1)

    on_bus(main)


def test_request_and_response_sent_by_hand() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(tl.endpoint("service")) as requests:
            request = tl.Message(
                type=tl.MessageType.REQUEST, recipient="service", request_id="req-9", payload={"method": "status"}
            )
            await bus.post(request)
            asked = requests.try_recv()
            waiting = asyncio.create_task(bus.wait_reply("req-9"))
            await until(lambda: bus.stats().open_requests)
            await bus.post(
                tl.Message(type=tl.MessageType.RESPONSE, request_id=asked.request_id, payload={"result": "ok"})
            )
            assert await waiting == {"result": "ok"}
        with pytest.raises(tl.MissingCorrelationId):
            await bus.post(tl.Message(type=tl.MessageType.RESPONSE, payload=1))

    on_bus(main)


def test_orphans_are_bounded() -> None:
    async def main(bus: tl.Bus) -> None:
        for n in range(1005):
            await bus.post(tl.Message(type=tl.MessageType.RESPONSE, request_id=f"r{n}"))
        assert len(bus.orphans) == 1000
        assert bus.orphans.evicted == 5
        assert not bus.orphans.find(request_id="r4")

    on_bus(main)


def test_one_request_id_is_open_once() -> None:
    async def main(bus: tl.Bus) -> None:
        bus.broker.tap("silent", lambda message: None)
        task = asyncio.create_task(bus.try_request("silent", request_id="r", timeout_s=1))
        await until(lambda: bus.stats().open_requests)
        with pytest.raises(tl.DuplicateName):
            await bus.request("silent", request_id="r")
        assert await task is None

    on_bus(main)


def test_closing_ends_requests_at_once() -> None:
    async def main(bus: tl.Bus) -> None:
        bus.broker.tap("silent", lambda message: None)
        raising = asyncio.create_task(bus.request("silent"))
        quiet = asyncio.create_task(bus.try_request("silent"))
        await until(lambda: bus.stats().open_requests == 2)
        await bus.aclose()
        with pytest.raises(tl.BusClosed):
            await raising
        assert await quiet is None

    on_bus(main)


@pytest.mark.parametrize("seed", range(25))
def test_concurrent_requests_never_mix(seed: int) -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("double", concurrency=5)
        async def double(n: int) -> int:
            await asyncio.sleep(n % 7 / 100)
            return 2 * n

        answers = await asyncio.gather(*(bus.request("double", n, reply=int) for n in range(100)))
        assert answers == [2 * n for n in range(100)]
        assert bus.stats().open_requests == 0

    on_bus(main, seed=seed)


async def test_an_endpoint_is_asked_as_it_is_sent_to(simulation: Simulation) -> None:
    breaker = CircuitBreaker(Breaker(failures=1))
    async with tl.connect("memory:", name="asker", world=world(simulation), hooks=[breaker]) as bus:

        @bus.on(tl.endpoint("agent2"))
        async def agent(message: tl.Message) -> str:
            return f"{message.recipient} says {message.decode()}"

        assert await bus.request(to="agent2", payload="yes") == "agent2 says yes"
        with pytest.raises(tl.UsageError, match="not both"):
            await bus.request("t", to="agent2")
        with pytest.raises(tl.RequestTimeout):
            await bus.request(to="nobody", timeout_s=1)
        with pytest.raises(tl.CircuitOpen):
            await bus.request(to="nobody", timeout_s=1)


async def test_an_error_without_a_request_is_accepted_and_answers_none(simulation: Simulation) -> None:
    async with tl.connect("memory:", world=world(simulation)) as bus, bus.subscribe("_reply") as replies:
        for kind in (tl.MessageType.RESPONSE, tl.MessageType.ACK):
            with pytest.raises(tl.MissingCorrelationId):
                tl.Message(type=kind, topic="_reply")
        stop = bus.broker.tap("silent", lambda message: None)
        asking = asyncio.create_task(bus.request("silent", timeout_s=5))
        await asyncio.sleep(0)
        error_id = await bus.post(tl.Message(type=tl.MessageType.ERROR, payload="broken"))
        assert replies.try_recv().id == error_id
        assert [orphan.message.id for orphan in bus.orphans] == [error_id]
        assert not asking.done()
        with pytest.raises(tl.RequestTimeout):
            await asking
        stop()
