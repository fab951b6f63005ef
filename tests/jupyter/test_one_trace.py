"""One trace from a request on the bus, over a hub, to the code that a real kernel executes, and to its output."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import trunkline as tl
from tests.jupyter.real import run
from trunkline.jupyter import Tracing, start_kernel


def test_a_request_over_a_hub_is_in_one_trace_with_the_kernel(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    traces: list[str | None] = []

    def hook() -> tl.hooks.Trace:
        return tl.hooks.Trace(tracer, streams=True)

    async def main() -> None:
        address = f"unix://{tmp_path}/hub.sock"
        async with (
            tl.connect(address, name="host", embed=True, hooks=[hook()]) as bus,
            start_kernel(bus=bus, tracing=Tracing(tracer)) as kernel,
            tl.connect(address, name="asker", hooks=[hook()]) as asker,
            asker.subscribe("kernel.*.iopub.stream") as printed,
        ):

            @bus.on("compute")
            async def compute(code: str) -> str:
                return (await kernel.run(code)).stdout

            await asker.flush()
            assert await asker.request("compute", "print(6 * 7)", timeout_s=30) == "42\n"
            message = await printed.recv(timeout_s=30)
            assert message is not None
            traces.append(message.trace)

    run(main())
    spans = exporter.get_finished_spans()

    def found(name: str) -> ReadableSpan:
        """The spans of the request's trace: a starting kernel gets other requests as well."""
        (span,) = [each for each in spans if each.name == name and each.context.trace_id == trace_id]
        return span

    (trace_id,) = {span.context.trace_id for span in spans if span.name == "handle compute"}
    handled, executed = found("handle compute"), found("kernel execute_request")
    (asked,) = [span for span in spans if span.context.trace_id == trace_id and span.parent is None]
    assert (asked.name, (asked.attributes or {})["messaging.destination.name"]) == ("request", "compute")
    printed = found("deliver kernel.*.iopub.stream")
    for span, parent in ((handled, asked), (executed, handled), (printed, executed)):
        assert span.context.trace_id == asked.context.trace_id
        assert span.parent is not None
        assert span.parent.span_id == parent.context.span_id
    flags = executed.context.trace_flags
    assert traces == [f"00-{executed.context.trace_id:032x}-{executed.context.span_id:016x}-{flags:02x}"]
