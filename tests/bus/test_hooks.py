from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from buses import on_bus, until
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import trunkline as tl
from trunkline import hooks
from trunkline.delivery.breaker import BreakerState
from trunkline.testing import Simulation, world

pytestmark = pytest.mark.usefixtures("both_ways")


class MemoryStore:
    def __init__(self) -> None:
        self.batches: list[list[tl.Message]] = []
        self.full = False

    async def append(self, batch: hooks.Batch) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        await asyncio.sleep(0.001)
        self.batches.append(list(batch))


def test_order_is_fixed_whatever_the_order_given(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    class Spy(hooks.Hook):
        def __init__(self, name: str) -> None:
            self._name = name
            self.stage = hooks.Stage[name]

        async def __call__(self, batch: hooks.Batch, forward: hooks.Forward) -> None:
            seen.append(self._name)
            await forward(batch)

    stages = ["TRACE", "LOG", "METRICS", "OWN", "COMPRESS", "PERSIST", "BREAKER", "LIMIT"]
    spies = [Spy(name) for name in reversed(stages)]

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish("t")
            assert seen == stages
            stream.try_recv()

    on_bus(main, hooks=spies)
    built_in: list[Any] = [
        hooks.RateLimit(per_topic=hooks.Rate(per_s=1)),
        hooks.CircuitBreaker(),
        hooks.Persist(MemoryStore()),
        hooks.Compress(),
        hooks.Metrics(),
        hooks.Log(),
        hooks.Trace(),
    ]
    assert [hook.stage.name for hook in reversed(built_in)] == [name for name in stages if name != "OWN"]


async def test_a_callable_that_looks_like_more_than_a_function_must_be_a_hook(simulation: Simulation) -> None:
    class Opens:
        async def __call__(self, batch: hooks.Batch, forward: hooks.Forward) -> None:
            await forward(batch)

        def open(self, message: tl.Message) -> tl.Message:
            return message

    with pytest.raises(tl.UsageError, match="Opens has open: derive it from"):
        tl.connect("memory:", world=world(simulation), hooks=[Opens()])


async def test_the_base_of_hooks_changes_nothing(simulation: Simulation) -> None:
    async with tl.connect("memory:", world=world(simulation), hooks=[hooks.Hook()]) as bus:
        assert (len(bus.hooks), bus.hooks.opens, bus.hooks.surrounds, bus.hooks.numbers) == (1, False, False, False)
        async with bus.subscribe("t") as stream:
            await bus.publish("t", b"1")
            assert stream.try_recv().payload == b"1"


def test_own_hook_in_three_lines_changes_or_refuses() -> None:
    @hooks.each
    def stamp(message: tl.Message) -> tl.Message:
        if message.decode() == "bad":
            raise ValueError("we do not say that")
        return message.replace(headers={"seen": "yes"})

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish("t", "good")
            assert stream.try_recv().headers == {"seen": "yes"}
            refused = bus.message("t", "bad")
            with pytest.raises(tl.HookFailed, match="stamp failed: ValueError: we do not say that"):
                await bus.post(refused)
            (outcome,) = (await bus.explain(refused.id)).outcomes
            assert outcome.fate is tl.Fate.REFUSED
            assert "we do not say that" in outcome.reason
            with pytest.raises(tl.PartlyRefused) as caught:
                await bus.publish_many("t", ["a", "bad", "b"])
            assert [message.decode() for message, _ in caught.value.refused] == ["bad"]
            assert [stream.try_recv().decode() for _ in range(2)] == ["a", "b"]
            assert stream.depth == 0
            assert bus.stats().total_refused == 2
            assert bus.stats().total_messages == 3

    on_bus(main, hooks=[stamp])


def test_hook_that_swallows_a_message_is_found_out() -> None:
    async def black_hole(batch: hooks.Batch, forward: hooks.Forward) -> None:
        return

    async def main(bus: tl.Bus) -> None:
        with pytest.raises(tl.HookFailed, match="neither forwarded"):
            await bus.publish("t")
        assert bus.stats().total_refused == 1

    on_bus(main, hooks=[black_hole])


def test_log_names_id_topic_sender_recipient(caplog: pytest.LogCaptureFixture) -> None:
    async def main(bus: tl.Bus) -> str:
        await bus.publish("quiet")
        with caplog.at_level(hooks.TRACE, logger="trunkline.publish"):
            return await bus.send("you", sender="me")

    message_id = on_bus(main, hooks=[hooks.Log()])
    (record,) = [record for record in caplog.records if record.name == "trunkline.publish"]
    assert record.levelname == "TRACE"
    assert record.getMessage() == f"publish id={message_id} topic=_to.you sender=me recipient=you"


def test_metrics_count_and_export() -> None:
    registry = CollectorRegistry()
    metrics = hooks.Metrics(registry)
    limit = hooks.RateLimit(per_topic=hooks.Rate(per_s=1, burst=3))

    async def main(bus: tl.Bus) -> None:
        await bus.publish_many("t", [b"12345"] * 2)
        with pytest.raises(tl.PartlyRefused):
            await bus.publish_many("t", [b"1"] * 2)
        with pytest.raises(tl.RateLimited):
            await bus.publish("t")

    on_bus(main, hooks=[metrics, limit])
    assert metrics.messages_published == 3
    assert metrics.bytes_published == 11
    assert metrics.refused == {"RateLimited": 2}
    text = generate_latest(registry).decode()
    assert "trunkline_published_total 3.0" in text
    assert 'trunkline_refused_total{error="RateLimited"} 2.0' in text


def test_persistence_comes_first_and_its_failure_is_the_publishers() -> None:
    store = MemoryStore()

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(">") as stream:
            ids = await bus.publish_many("keep.a", range(3))
            await bus.publish("other", 1)
            assert [[message.id for message in batch] for batch in store.batches] == [ids]
            assert stream.depth == 4
            store.full = True
            with pytest.raises(tl.HookFailed, match="No space left") as caught:
                await bus.publish("keep.a")
            assert isinstance(caught.value.__cause__, OSError)
            assert stream.depth == 4, "what is not stored must not be seen"

    on_bus(main, hooks=[hooks.Persist(store, "keep.>")])


def test_circuit_opens_refuses_probes_and_closes() -> None:
    breaker = hooks.CircuitBreaker(hooks.Breaker(failures=3, open_s=10))

    async def main(bus: tl.Bus) -> None:
        well = False
        calls: list[str] = []

        @bus.on(tl.endpoint("shaky"), retry=tl.Retry(attempts=1))
        async def shaky() -> None:
            calls.append("called")
            if not well:
                raise ConnectionError

        for n in range(3):
            await bus.send("shaky")
            await until(lambda n=n: len(bus.dead_letters) == n + 1)  # type: ignore[misc]
        assert breaker.state("shaky") is BreakerState.OPEN
        with pytest.raises(tl.CircuitOpen) as caught:
            await bus.send("shaky")
        assert caught.value.recipient == "shaky"
        assert 9 < caught.value.retry_in_s <= 10
        await bus.send("healthy")
        await asyncio.sleep(10)
        await bus.send("shaky")  # the probe, which fails
        assert breaker.state("shaky") is BreakerState.HALF_OPEN
        with pytest.raises(tl.CircuitOpen):
            await bus.send("shaky")
        await until(lambda: breaker.state("shaky") is BreakerState.OPEN)
        well = True
        await asyncio.sleep(10)
        await bus.send("shaky")
        await until(lambda: breaker.state("shaky") is BreakerState.CLOSED)
        await bus.send("shaky")
        await until(lambda: len(calls) == 6)

    on_bus(main, hooks=[breaker])


def test_unanswered_requests_open_the_circuit_too() -> None:
    breaker = hooks.CircuitBreaker(hooks.Breaker(failures=2))

    async def main(bus: tl.Bus) -> None:
        for _ in range(2):
            with pytest.raises(tl.RequestTimeout):
                await bus.request(tl.endpoint("deaf"), recipient="deaf", timeout_s=1)
        with pytest.raises(tl.CircuitOpen):
            await bus.request(tl.endpoint("deaf"), recipient="deaf", timeout_s=1)

    on_bus(main, hooks=[breaker])


def test_the_circuit_learns_from_requests_by_topic_and_from_other_buses() -> None:
    breaker = hooks.CircuitBreaker(hooks.Breaker(failures=2, open_s=10))

    async def main(bus: tl.Bus) -> None:
        well = False

        async def shaky() -> str:
            if not well:
                raise ConnectionError
            return "well"

        async with tl.Bus(bus.broker, name="other") as other:
            for topic in ("pricing", tl.endpoint("shaky")):
                other.handle(topic, shaky, retry=tl.Retry(attempts=1), name=topic)
            # By topic, on the topic of an endpoint, and to an endpoint, which is the same.
            asks: dict[str, Callable[[], Awaitable[Any]]] = {
                "pricing": lambda: bus.request("pricing"),
                "shaky": lambda: bus.request(tl.endpoint("shaky")),
                "deaf": lambda: bus.request(to="deaf", timeout_s=1),
                "unheard": lambda: bus.request("unheard", timeout_s=1),
            }
            for name, ask in asks.items():
                with pytest.raises(tl.TrunklineError):
                    await ask()
                # Once, although the handler has failed and the answer is an error.
                assert breaker.state(name) is BreakerState.CLOSED
                with pytest.raises(tl.TrunklineError):
                    await ask()
                assert breaker.state(name) is BreakerState.OPEN
                with pytest.raises(tl.CircuitOpen) as caught:
                    await ask()
                assert caught.value.recipient == name
            with pytest.raises(tl.CircuitOpen):
                await bus.send("shaky")
            # A message for all subscribers has no recipient.
            await bus.publish("pricing")
            well = True
            await asyncio.sleep(11)
            assert await bus.request("pricing") == "well"
            assert breaker.state("pricing") is BreakerState.CLOSED
        assert len(bus.broker.served.listeners) == 1

    on_bus(main, hooks=[breaker])


def test_the_circuit_learns_from_errors_of_those_who_answer_by_hand() -> None:
    breaker = hooks.CircuitBreaker(hooks.Breaker(failures=2))

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("pricing") as requests:

            async def answer() -> None:
                async for request in requests:
                    await bus.respond_error(request, ConnectionError("no"))

            answering = asyncio.create_task(answer())
            for _ in range(2):
                with pytest.raises(tl.RequestFailed):
                    await bus.request("pricing")
            with pytest.raises(tl.CircuitOpen):
                await bus.request("pricing")
            requests.stop()
            await answering

    on_bus(main, hooks=[breaker])


def test_rate_limit_per_topic_and_per_sender() -> None:
    limit = hooks.RateLimit(per_topic=hooks.Rate(per_s=10, burst=5), per_sender=hooks.Rate(per_s=1, burst=8))

    async def main(bus: tl.Bus) -> None:
        for _ in range(5):
            await bus.publish("a")
        with pytest.raises(tl.RateLimited, match="topic 'a'") as caught:
            await bus.publish("a")
        assert caught.value.retry_in_s == pytest.approx(0.1)
        for _ in range(3):
            await bus.publish("b")
        with pytest.raises(tl.RateLimited, match="sender 'bus'"):
            await bus.publish("b")
        await bus.publish("b", sender="somebody else")
        await asyncio.sleep(1)
        await bus.publish("a")

    on_bus(main, hooks=[limit])


def test_compression_is_undone_by_every_reader() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[Any] = []

        @bus.on("t")
        async def handle(value: dict[str, str]) -> None:
            seen.append(value)

        async with bus.subscribe("t") as stream, bus.subscribe("t", where="len(payload.text) > 5000") as big:
            value = {"text": "la" * 5000}
            await bus.publish("t", value)
            await bus.publish("t", {"text": "short"})
            packed, small = stream.try_recv(), stream.try_recv()
            assert packed.encoding == "zlib"
            assert len(packed.payload) < 200
            assert packed.decode() == value
            assert small.encoding == ""
            assert big.depth == 1
            big.try_recv()
            await until(lambda: len(seen) == 2)
            assert seen[0] == value

    on_bus(main, hooks=[hooks.Compress()])


@pytest.mark.parametrize(("limit", "size"), [(1000, 5000), (20 * 2**20, 11 * 2**20)])
def test_compressed_answers_are_unpacked_up_to_the_limit_of_the_bus(limit: int, size: int) -> None:
    async def main() -> None:
        # The responder may send larger messages than the requester accepts.
        server = tl.Settings(max_message_bytes=20 * 2**20)
        broker = tl.MemoryBroker()
        async with (
            tl.Bus(broker, settings=server, hooks=[hooks.Compress()]) as other,
            tl.Bus(broker, settings=tl.Settings(max_message_bytes=limit)) as bus,
        ):

            @other.on("text")
            async def text(count: int) -> bytes:
                return bytes(count)

            if size > limit:
                with pytest.raises(tl.MessageTooLarge):
                    await bus.request("text", size)
            else:
                assert await bus.request("text", size, reply=bytes) == bytes(size)
        await broker.aclose()

    asyncio.run(main())


def test_trace_joins_publisher_and_handler() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace = hooks.Trace(provider.get_tracer("test"))

    async def main(bus: tl.Bus) -> None:
        handled: list[tl.Message] = []

        @bus.on("t")
        async def handle(message: tl.Message) -> None:
            handled.append(message)
            await bus.publish("next")

        await bus.publish("t")
        await until(lambda: len(exporter.get_finished_spans()) == 4)
        assert handled[0].trace is not None
        assert handled[0].trace.startswith("00-")

    on_bus(main, hooks=[trace])
    provider.shutdown()
    finished = exporter.get_finished_spans()
    spans = {(each.name, (each.attributes or {})["messaging.destination.name"]): each for each in finished}
    first, handling, second = spans["publish", "t"], spans["handle t", "t"], spans["publish", "next"]
    assert handling.parent is not None
    assert second.parent is not None
    assert handling.parent.span_id == first.context.span_id
    assert handling.parent == spans["deliver t", "t"].parent
    assert second.parent.span_id == handling.context.span_id
    assert first.context.trace_id == handling.context.trace_id == second.context.trace_id


@pytest.mark.parametrize("make", [hooks.Trace, lambda: hooks.Metrics(CollectorRegistry())])
def test_missing_extra_says_what_to_install(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_extras(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(("opentelemetry", "prometheus_client")):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_extras)
    with pytest.raises(tl.MissingExtra, match=r"pip install 'trunkline\[observe\]'"):
        make()


def test_hooks_see_batches_of_one_kind_split_again_for_the_broker() -> None:
    @hooks.each
    def odd_ones_first(message: tl.Message) -> tl.Message:
        return message.replace(priority=90) if message.decode() % 2 else message

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish_many("t", range(6))
            assert [stream.try_recv().decode() for _ in range(6)] == [1, 3, 5, 0, 2, 4]

    on_bus(main, hooks=[odd_ones_first])


def test_hooks_and_no_hooks_give_the_same_messages() -> None:
    async def passing(batch: hooks.Batch, forward: hooks.Forward) -> None:
        await forward(batch)

    async def main(bus: tl.Bus) -> list[bytes]:
        async with bus.subscribe(">") as stream:
            await bus.publish("t", {"a": 1})
            await bus.publish("t", b"x", priority=80, ttl_s=5)
            await bus.send("you", 1)
            await bus.publish_many("t", [1, 2])
            unlike = {"id": "", "trace": None, "reply_to": None}
            return [msgspec.structs.replace(stream.try_recv(), **unlike).to_bytes() for _ in range(5)]

    assert on_bus(main) == on_bus(main, hooks=[passing])
    logging.getLogger("trunkline").setLevel(logging.NOTSET)
