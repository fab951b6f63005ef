"""The span of a publish that starts a trace equals the span of the SDK, but is created with less work."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import StatusCode

import trunkline as tl
from tests.hub.hubs import Place, connection_of
from trunkline.clock import World
from trunkline.delivery.plain_run import PlainRun
from trunkline.hooks.hook import Batch, Forward
from trunkline.testing import Simulation, simulate, world

NEARLY_ALL = 0.999_999
MANY = 300


class Tracing:
    """A tracer, its spans, and the hook; `watched` if a processor sees the spans when they start."""

    def __init__(self, *, share: float = NEARLY_ALL, watched: bool = False, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.watcher = Watcher()
        provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)), **options)
        if watched:
            provider.add_span_processor(self.watcher)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider = provider
        self.hook = Short(provider.get_tracer("test"))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())


class Short(tl.hooks.Trace):
    """Counts the batches that pass the hook."""

    called = 0

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        self.called += 1
        await super().__call__(batch, forward)


class Watcher(SpanProcessor):
    def __init__(self) -> None:
        self.started: list[str] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.started.append(span.name)
        span.set_attribute("seen", True)


def publish_one(tracing: Tracing, topic: str = "orders.placed") -> tuple[ReadableSpan, tl.Message]:
    """Without the first, which finds the lane of the topic."""
    got: list[tl.Message] = []

    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation), hooks=[tracing.hook]) as bus, bus.subscribe(topic) as stream:
            await bus.publish(topic)
            stream.try_recv()
            tracing.exporter.clear()
            await bus.publish(topic, b"12345")
            got.append(stream.try_recv())

    tracing.hook.called = 0
    simulate(main)
    assert tracing.hook.called == 1, "only the first one has passed the hook"
    [span] = tracing.spans
    return span, got[0]


def about(span: ReadableSpan) -> dict[str, Any]:
    names = [name for name in dir(ReadableSpan) if isinstance(getattr(ReadableSpan, name), property)]
    found = {name: getattr(span, name) for name in names if name != "instrumentation_info"}
    del found["context"], found["start_time"], found["end_time"]
    return found | {"attributes": dict(span.attributes or {}), "resource": dict(span.resource.attributes)}


def test_it_is_the_span_that_the_sdk_makes() -> None:
    quick, message = publish_one(Tracing())
    made, made_for = publish_one(Tracing(watched=True))
    one, other = about(quick), about(made)
    assert other["attributes"].pop("seen")
    assert one["attributes"].pop("messaging.message.id") == message.id
    assert other["attributes"].pop("messaging.message.id") == made_for.id
    # The status does not define equality.
    assert one.pop("status").status_code is other.pop("status").status_code
    assert one == other
    for span, each in ((quick, message), (made, made_for)):
        assert span.context.trace_flags == made.context.trace_flags
        ids = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
        assert each.trace == ids
        assert span.start_time == each.timestamp_ns
        assert span.end_time is not None
        assert span.end_time >= each.timestamp_ns
    assert quick.to_json()


def test_a_processor_sees_spans_start_also_if_it_comes_later() -> None:
    tracing = Tracing()

    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation), hooks=[tracing.hook]) as bus:
            for _ in range(3):
                await bus.publish("t")
            tracing.provider.add_span_processor(tracing.watcher)
            for _ in range(2):
                await bus.publish("t")

    simulate(main)
    assert tracing.watcher.started == ["publish"] * 2
    assert ["seen" in (span.attributes or {}) for span in tracing.spans] == [False] * 3 + [True] * 2


def test_limits_of_the_sdk_hold() -> None:
    span, message = publish_one(Tracing(span_limits=SpanLimits(max_span_attribute_length=10)), "t.a.long.name")
    assert span.attributes is not None
    assert span.attributes["messaging.destination.name"] == "t.a.long.n"
    assert span.attributes["messaging.message.id"] == message.id[:10]
    span, _ = publish_one(Tracing(span_limits=SpanLimits(max_span_attributes=2)))
    assert span.attributes is not None
    assert len(span.attributes) == 2
    assert span.dropped_attributes == 4


def test_a_publish_that_is_refused_is_a_failed_span() -> None:
    tracing = Tracing()
    got: list[str | None] = []

    async def main(simulation: Simulation) -> None:
        async with (
            tl.connect(world=world(simulation), hooks=[tracing.hook]) as bus,
            bus.subscribe("t") as stream,
            bus.subscribe("t", capacity=1, overflow="reject"),
        ):
            await bus.publish("t")
            tracing.exporter.clear()
            with pytest.raises(tl.InboxFull):
                await bus.publish("t")
            stream.try_recv()
            got.append(stream.try_recv().trace)

    simulate(main)
    [span] = tracing.spans
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "InboxFull"
    assert [event.name for event in span.events] == ["exception"]
    # The other subscriber has got it, in the trace that this span belongs to.
    assert got == [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"]


def test_a_sampled_message_stays_in_the_batch_of_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = Tracing(share=0.1)
    batches: list[list[int]] = []
    built: list[int] = []
    original: Any = vars(PlainRun)["messages"]

    def messages(run: PlainRun) -> Any:
        built.append(len(run))
        return original.fget(run)

    monkeypatch.setattr(PlainRun, "messages", property(messages))

    async def publish(there: World, address: str, *hooks: tl.hooks.Hook) -> None:
        async with tl.connect(address, world=there, hooks=hooks) as bus, bus.subscribe("t") as stream:
            await bus.publish("t")
            await bus.flush()
            await stream.recv()
            tracing.exporter.clear()
            sizes: list[int] = []
            batches.append(sizes)
            send = connection_of(bus).queue

            def count(frames: Any) -> None:
                sizes.append(len(frames))
                send(frames)

            with monkeypatch.context() as patched:
                patched.setattr(connection_of(bus), "queue", count)
                for number in range(MANY):
                    await bus.publish("t", b"%d" % number)
                await bus.flush()
            assert built == []
            got = [await stream.recv() for _ in range(MANY)]
            check([message for message in got if message])
            # The bus remembers the same.
            assert [each.trace for each in bus.history(MANY)] == [each.trace for each in got if each]
            built.clear()

    def check(got: list[tl.Message]) -> None:
        assert [message.payload for message in got] == [b"%d" % number for number in range(MANY)]
        traces = [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}" for span in tracing.spans]
        assert [message.trace[:-3] for message in got if message.trace] == traces
        ids = [(span.attributes or {})["messaging.message.id"] for span in tracing.spans]
        assert ids == [message.id for message in got if message.trace]

    async def main(simulation: Simulation) -> None:
        there = world(simulation)
        place = Place(there)
        await place.start()
        try:
            await publish(there, place.address)
            assert not tracing.spans
            await publish(there, place.address, tracing.hook)
            assert 10 < len(tracing.spans) < 60
        finally:
            await place.stop()

    simulate(main)
    plain, traced = batches
    assert len(traced) == len(plain) < 5
