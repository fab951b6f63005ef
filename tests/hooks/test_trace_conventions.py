"""Spans follow OpenTelemetry's conventions for messaging, and are joined across processes and a hub."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState

import trunkline as tl
from tests.hub.hub_process import ROOT, running_hub
from tests.hub.hubs import until
from trunkline.testing import Simulation, simulate, world

PUBLISHER = """
import asyncio, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
import trunkline as tl

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.to_json(None) + "\\n")))

async def main():
    trace = tl.hooks.Trace(provider.get_tracer("publisher"))
    async with tl.connect(sys.argv[1], name="publisher", hooks=[trace]) as bus:
        await bus.publish("orders.eu.placed", {"order": 1})
        assert await bus.request("prices", 2, timeout_s=60) == 4

asyncio.run(main())
provider.shutdown()
"""


class Recorded:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.hook = tl.hooks.Trace(self.provider.get_tracer("test"))

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


def test_operations_templates_and_names() -> None:
    recorded = Recorded()

    async def main(simulation: Simulation) -> list[str]:
        async with tl.connect(world=world(simulation), hooks=[recorded.hook]) as bus:

            @bus.on("orders.*", name="billing")
            async def bill(number: int) -> None:
                if number == 3:
                    raise tl.Reject("three")

            ids = await bus.publish_many("orders.placed", [1, 2])
            single = await bus.publish("orders.4711", 3)
            await bus.quiet()
            return [*ids, single]

    many = simulate(main)
    assert {span.name for span in recorded.spans()} >= {"publish", "handle orders.*"}
    assert not [span.name for span in recorded.spans() if "placed" in span.name or "4711" in span.name]
    batch, one = (span for span in recorded.named("publish") if attributes(span)["destination.name"].startswith("ord"))
    assert batch.kind is one.kind is SpanKind.PRODUCER
    assert attributes(batch) == {
        "system": "trunkline",
        "operation.name": "publish",
        "operation.type": "send",
        "destination.name": "orders.placed",
        "batch.message_count": 2,
    }
    assert attributes(one)["message.id"] == many[2]
    assert attributes(one)["message.body.size"] > 0
    assert "batch.message_count" not in attributes(one)
    handled = recorded.named("handle orders.*")
    assert [attributes(span)["message.id"] for span in handled] == many
    for span, published in zip(handled, (batch, batch, one), strict=True):
        found = attributes(span)
        assert span.kind is SpanKind.CONSUMER
        assert (found["operation.name"], found["operation.type"]) == ("handle", "process")
        assert found["destination.template"] == "orders.*"
        assert found["destination.subscription.name"] == "billing"
        assert span.parent is not None
        assert span.parent.span_id == published.context.span_id
        assert [link.context.span_id for link in span.links] == [published.context.span_id]
    assert "error.type" not in attributes(handled[0])
    assert attributes(handled[2])["error.type"] == "Reject"
    assert handled[2].status.status_code.name == "ERROR"


@pytest.mark.parametrize("streams", [False, True])
def test_what_is_taken_from_a_stream_is_delivered(streams: bool) -> None:
    recorded = Recorded()
    hook = tl.hooks.Trace(recorded.provider.get_tracer("test"), streams=streams)

    async def main(simulation: Simulation) -> list[str]:
        async with tl.connect(world=world(simulation), hooks=[hook]) as bus:
            async with bus.subscribe("orders.*", name="audit") as stream, bus.subscribe("orders.>", ack=True) as acked:
                ids = [await bus.publish("orders.placed", number) for number in range(4)]
                await asyncio.sleep(2)
                messages = aiter(stream)
                assert [(await anext(messages)).id, stream.try_recv().id] == ids[:2]
                assert [message.id for message in await anext(stream.batches())] == ids[2:]
                acked.nack(acked.try_recv())
                assert [acked.ack(await acked.recv(timeout_s=60)) for _ in ids] == [True] * 4  # type: ignore[arg-type]
            return ids

    ids = simulate(main)
    found = recorded.named("deliver orders.*")
    assert [attributes(span)["message.id"] for span in found] == (ids if streams else [])
    for span, published in zip(found, recorded.named("publish"), strict=False):
        assert span.parent is not None
        assert span.parent.span_id == published.context.span_id
        assert [link.context.span_id for link in span.links] == [published.context.span_id]
        assert attributes(span)["destination.subscription.name"] == "audit"
        assert span.start_time is not None
        assert span.start_time < (published.end_time or 0) + 10**9
    again = [attributes(span).get("trunkline.attempt") for span in recorded.named("deliver orders.>")]
    assert again == ([None] * 4 + [2] if streams else [])


def test_state_and_baggage_travel_with_the_message() -> None:
    recorded = Recorded()
    seen: list[tuple[object, str | None]] = []

    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation), hooks=[recorded.hook]) as bus:

            @bus.on("t")
            async def handle(message: tl.Message) -> None:
                state = trace.get_current_span().get_span_context().trace_state
                seen.append((baggage.get_baggage("tenant"), state.get("vendor")))

            flags = TraceFlags(TraceFlags.SAMPLED)
            remote = SpanContext(1, 2, True, flags, TraceState([("vendor", "x")]))
            token = context.attach(
                baggage.set_baggage("tenant", "acme", trace.set_span_in_context(NonRecordingSpan(remote)))
            )
            try:
                await bus.publish("t", 1)
            finally:
                context.detach(token)
            await bus.quiet()

    simulate(main)
    assert seen == [("acme", "x")]


@pytest.mark.slow
def test_one_trace_over_two_processes_and_a_hub(tmp_path: Path) -> None:
    recorded = Recorded()

    async def main(address: str) -> str:
        async with tl.connect(address, name="consumer", hooks=[recorded.hook]) as bus:
            handled = asyncio.Event()

            @bus.on("orders.>", name="billing")
            async def bill(order: Any) -> None:
                handled.set()

            @bus.on("prices")
            async def price(number: int) -> int:
                return number * number

            await bus.flush()
            publisher = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PUBLISHER, address, cwd=ROOT, stdout=subprocess.PIPE
            )
            out, _ = await publisher.communicate()
            assert publisher.returncode == 0
            await asyncio.wait_for(handled.wait(), 60)
            await bus.quiet()
            return out.decode()

    with running_hub(tmp_path) as hub:
        out = asyncio.run(main(hub.address))
    there = {span["name"]: span for span in map(json.loads, out.splitlines())}
    for sent, handling in (("publish", "handle orders.>"), ("request", "handle prices")):
        (here,) = recorded.named(handling)
        assert here.parent is not None
        assert f"0x{here.context.trace_id:032x}" == there[sent]["context"]["trace_id"]
        assert f"0x{here.parent.span_id:016x}" == there[sent]["context"]["span_id"]
        assert [f"0x{link.context.span_id:016x}" for link in here.links] == [there[sent]["context"]["span_id"]]
    (answer,) = recorded.named("respond")
    assert attributes(answer)["destination.temporary"] is True
    assert f"0x{answer.context.trace_id:032x}" == there["request"]["context"]["trace_id"]


def test_a_request_lasts_until_its_answer_and_a_failure_is_on_record() -> None:
    recorded = Recorded()

    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation), hooks=[recorded.hook]) as bus:

            @bus.on("slow")
            async def slow() -> int:
                await asyncio.sleep(5)
                return 1

            @bus.on("broken", retry=tl.Retry(attempts=1))
            async def broken() -> None:
                raise ValueError("no")

            assert await bus.request("slow") == 1
            with pytest.raises(tl.RequestFailed):
                await bus.request("broken")
            with pytest.raises(tl.RequestTimeout):
                await bus.request("slow", timeout_s=1)
            with pytest.raises(tl.NoResponders):
                await bus.request("nobody")

    simulate(main)
    spans = {attributes(span)["destination.name"]: span for span in recorded.named("request")}
    errors = [attributes(span).get("error.type") for span in recorded.named("request")]
    assert errors == [None, "RequestFailed", "RequestTimeout", "NoResponders"]
    (answer, _) = recorded.named("respond")
    first = recorded.named("request")[0]
    assert first.end_time is not None
    assert answer.end_time is not None
    assert first.end_time >= answer.end_time
    assert spans["broken"].status.status_code.name == "ERROR"


@pytest.mark.parametrize("options", [{}, {"group": "billing"}])
@pytest.mark.slow
def test_attempts_and_dead_letters_through_a_hub(options: tl.DeliveryOptions, tmp_path: Path) -> None:
    recorded = Recorded()

    async def main(address: str) -> None:
        async with asyncio.timeout(60), tl.connect(address, hooks=[recorded.hook]) as bus:

            @bus.on("orders.*", name="bill", retry=tl.Retry(attempts=2, delay_s=0.01), **options)
            async def bill(order: int) -> None:
                raise ValueError("unpaid")

            await bus.flush()
            await bus.publish("orders.eu", 1)
            await until(lambda: bool(recorded.named("dead letter")), "a dead letter")

    with running_hub(tmp_path) as hub:
        asyncio.run(main(hub.address))
    # The notice on _dead.orders.eu is published, too.
    published = recorded.named("publish")[0]
    for name, count in (("deliver orders.*", 1), ("handle orders.*", 2), ("retry orders.*", 1), ("dead letter", 1)):
        spans = recorded.named(name)
        assert len(spans) == count
        assert {span.context.trace_id for span in spans} == {published.context.trace_id}
