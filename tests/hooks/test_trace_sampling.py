"""A share of traces is sampled before the hooks: by trace id, as OpenTelemetry's samplers decide, and by the parent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    DEFAULT_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import trunkline as tl
from trunkline.hooks.hook import Batch, Forward
from trunkline.journal import Journal
from trunkline.testing import Simulation, simulate, world

SHARE = 0.1
COUNT = 3000
WITHIN = (0.8 * SHARE * COUNT, 1.2 * SHARE * COUNT)
"""Nearly four standard deviations; the ids are seeded. Drawn twice for each message, the share were nearly 0.19."""


class SeededIds(IdGenerator):
    def __init__(self) -> None:
        self._random = random.Random(7)

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or 1


class Counting(tl.hooks.Trace):
    """The number of batches that took the long path."""

    called = 0

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        self.called += 1
        await super().__call__(batch, forward)


class Sampled:
    def __init__(self, sampler: Sampler, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, id_generator=SeededIds())
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.hook = Counting(self.tracer, **options)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def names(self) -> set[str]:
        return {span.name for span in self._exporter.get_finished_spans()}


def parent_context(*, sampled: bool) -> Any:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return trace.use_span(NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=flags)))


def run(sampled: Sampled, main: Callable[[tl.Bus], Awaitable[None]]) -> None:
    async def on_bus(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation), hooks=[sampled.hook]) as bus:
            await main(bus)

    simulate(on_bus)


@pytest.mark.parametrize("sampler", [TraceIdRatioBased(SHARE), ParentBased(TraceIdRatioBased(SHARE))])
def test_a_share_of_publishes_is_sampled_and_the_others_pass_no_hook(sampler: Sampler) -> None:
    sampled = Sampled(sampler)
    traces: list[str | None] = []

    async def main(bus: tl.Bus) -> None:
        @bus.on("t.*", name="reader")
        async def handle(message: tl.Message) -> None:
            traces.append(message.trace)

        for number in range(COUNT):
            await bus.publish("t.x", number)
        await bus.quiet()

    run(sampled, main)
    published = sampled.named("publish")
    assert len(traces) == COUNT
    assert WITHIN[0] < len(published) < WITHIN[1]
    # One more: the first message on the topic has no lane yet.
    assert sampled.hook.called <= len(published) + 1
    bound = TraceIdRatioBased(SHARE).bound
    assert all(span.context.trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < bound for span in published)
    assert len({span.context.trace_id for span in published}) == len(published)
    ids = [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}" for span in published]
    assert [each.rpartition("-")[0] for each in traces if each] == ids
    for name in ("deliver t.*", "handle t.*"):
        parents = [span.parent.span_id for span in sampled.named(name) if span.parent]
        assert parents == [span.context.span_id for span in published]


async def _publish(bus: tl.Bus) -> None:
    await bus.publish("t")


async def _fields(bus: tl.Bus) -> None:
    await bus.publish("t", priority=70)


async def _large(bus: tl.Bus) -> None:
    # More than the history remembers.
    await bus.publish("t", b"x" * 5_000)


async def _many(bus: tl.Bus) -> None:
    await bus.publish_many("t", [1, 2])


async def _mixed(bus: tl.Bus) -> None:
    await bus.publish_many("t", [b"1", 2], priority=70)


async def _send(bus: tl.Bus) -> None:
    await bus.send("ann")


async def _post(bus: tl.Bus) -> None:
    await bus.post(tl.Message(topic="t"))


async def _request(bus: tl.Bus) -> None:
    assert await bus.request("ask") == 5


async def _request_with_fields(bus: tl.Bus) -> None:
    assert await bus.request("ask", priority=70) == 5


@pytest.mark.parametrize(
    "way", [_publish, _fields, _large, _many, _mixed, _send, _post, _request, _request_with_fields]
)
def test_every_way_out_is_decided_once(way: Callable[[tl.Bus], Awaitable[None]]) -> None:
    sampled = Sampled(TraceIdRatioBased(SHARE))

    async def main(bus: tl.Bus) -> None:
        @bus.on("ask")
        async def answer() -> int:
            return 5

        async with bus.subscribe("t", overflow="drop_oldest"), bus.subscribe("_to.ann", overflow="drop_oldest"):
            for _ in range(COUNT):
                await way(bus)

    run(sampled, main)
    spans = [span for name in ("publish", "send", "request") for span in sampled.named(name)]
    assert WITHIN[0] < len(spans) < WITHIN[1]
    # An answer is sampled if its request is, and only then.
    assert len(sampled.named("respond")) == len(sampled.named("request")) == len(sampled.named("handle ask"))


def test_a_pipeline_is_sampled_too(tmp_path: Path) -> None:
    sampled = Sampled(TraceIdRatioBased(SHARE))

    async def main() -> None:
        with Journal(tmp_path / "j") as journal:
            await pipe_all(journal)

    async def pipe_all(journal: Journal) -> None:
        async with tl.connect("memory:", journal=journal, hooks=[sampled.hook]) as bus:
            async with bus.pipeline() as pipe:
                for number in range(COUNT // 3):
                    await pipe.publish("t", number)
            assert bus.stats().total_messages == COUNT // 3

    asyncio.run(main())
    assert WITHIN[0] / 3 * 0.8 < len(sampled.named("publish")) < WITHIN[1] / 3 * 1.2


@pytest.mark.parametrize("share", [0.0, SHARE])
def test_what_is_published_in_a_span_is_sampled_as_its_parent_is(share: float) -> None:
    sampled = Sampled(ParentBased(TraceIdRatioBased(share)))
    traces: list[str | None] = []

    async def main(bus: tl.Bus) -> None:
        @bus.on("t")
        async def handle(message: tl.Message) -> None:
            traces.append(message.trace)
            await bus.publish("next")

        await bus.publish("warm")
        for is_sampled in (True, False):
            with parent_context(sampled=is_sampled):
                for _ in range(50):
                    await bus.publish("t")
                    assert await bus.try_request("nobody") is None
            await bus.quiet()

    run(sampled, main)
    assert [each[-2:] for each in traces if each] == ["01"] * 50 + ["00"] * 50
    for name in ("deliver t", "handle t", "request"):
        assert len(sampled.named(name)) == 50
    inside = [span for span in sampled.named("publish") if span.context.trace_id == 1]
    assert len(inside) == 100  # of `t`, and of `next` by its handler
    assert len(sampled.named("publish")) - len(inside) <= 1  # "warm"


def test_what_is_published_while_an_unsampled_message_is_handled_is_not_sampled() -> None:
    sampled = Sampled(ParentBased(TraceIdRatioBased(SHARE)))

    async def main(bus: tl.Bus) -> None:
        @bus.on("t")
        async def handle(message: tl.Message) -> None:
            assert trace.get_current_span().get_span_context().is_valid
            assert trace.get_current_span().get_span_context().trace_flags.sampled == bool(message.trace)
            with sampled.tracer.start_as_current_span("own"):
                await bus.publish("within")
            await bus.publish("next")

        for _ in range(COUNT // 3):
            await bus.publish("t")
            await bus.quiet()

    run(sampled, main)
    handled = {span.context.span_id for span in sampled.named("handle t")}
    assert 50 < len(handled) < 150
    assert len(sampled.named("own")) == len(handled)
    roots = [span for span in sampled.named("publish") if span.parent is None]
    assert len(roots) == len(handled)
    assert len(sampled.named("publish")) == 3 * len(handled)


def test_nothing_is_sampled_by_a_sampler_that_is_off_and_no_hook_runs() -> None:
    sampled = Sampled(ALWAYS_OFF)

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            for _ in range(100):
                await bus.publish("t")
            assert stream.depth == 100

    run(sampled, main)
    assert sampled.names() == set()
    assert sampled.hook.called <= 1


def test_another_sampler_is_asked_for_every_message() -> None:
    class Important(Sampler):
        asked = 0

        def should_sample(
            self, parent_context: Any, trace_id: int, name: str, kind: Any = None, attributes: Any = None, *_: Any
        ) -> SamplingResult:
            self.asked += 1
            wanted = (attributes or {}).get("messaging.destination.name") == "important"
            return SamplingResult(Decision.RECORD_AND_SAMPLE if wanted else Decision.DROP, attributes)

        def get_description(self) -> str:
            return "important"

    sampler = Important()
    sampled = Sampled(sampler)

    async def main(bus: tl.Bus) -> None:
        for _ in range(10):
            await bus.publish("important")
            await bus.publish("other")

    run(sampled, main)
    assert sampler.asked == 20
    assert len(sampled.named("publish")) == 10


@pytest.mark.parametrize(
    ("sampler", "starts_traces", "spans"),
    [
        (DEFAULT_ON, None, 5),
        (DEFAULT_ON, False, 0),
        (ParentBased(TraceIdRatioBased(0.0)), None, 0),
        (ParentBased(TraceIdRatioBased(0.5)), None, 0),
    ],
)
def test_a_handler_starts_a_trace_only_where_every_trace_is_sampled(
    sampler: Sampler, starts_traces: bool | None, spans: int
) -> None:
    sampled = Sampled(sampler, starts_traces=starts_traces)

    async def main(simulation: Simulation) -> None:
        plain = tl.connect(world=world(simulation))
        async with plain as publisher, tl.Bus(publisher.broker, hooks=[sampled.hook]) as bus:

            @bus.on("t")
            async def handle() -> None: ...

            for _ in range(5):
                await publisher.publish("t")
            await bus.quiet()

    simulate(main)
    assert len(sampled.named("handle t")) == spans


def test_state_of_the_sampler_and_trace_given_by_hand() -> None:
    sampled = Sampled(ParentBased(ALWAYS_OFF))
    given = f"00-{1:032x}-{2:016x}-01"

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(">", capacity=100) as stream:
            await bus.publish("t")
            await bus.publish("t", trace=given)
            await bus.publish_many("t", [1], trace=given)
            await bus.send("ann", trace=given)
            assert [stream.try_recv().trace for _ in range(4)] == [None, given, given, given]

    run(sampled, main)
    spans = sampled.named("publish") + sampled.named("send")
    assert [span.context.trace_id for span in spans] == [1, 1, 1]
