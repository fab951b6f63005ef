"""Which messages of a run are sampled is decided when the run is closed, and at the latest a second after a burst."""

from __future__ import annotations

import asyncio
import logging

import pytest
from opentelemetry import context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

import trunkline as tl
from tests.hooks.test_publish_spans import Tracing
from trunkline.bus import bus as bus_module
from trunkline.testing import Simulation, world

SHARE = 0.1
MANY = 400


@pytest.fixture(autouse=True)
def early_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin with fewer messages."""
    monkeypatch.setattr(bus_module, "WATCH", 7)


def connect(simulation: Simulation, tracing: Tracing) -> tl.Bus:
    return tl.connect("memory:", world=world(simulation), hooks=[tracing.hook])


def ids_of(spans: list[ReadableSpan]) -> list[object]:
    return [(span.attributes or {})["messaging.message.id"] for span in spans]


async def test_a_share_of_a_run_is_sampled_and_its_messages_have_the_traces(simulation: Simulation) -> None:
    tracing = Tracing(share=SHARE)
    async with connect(simulation, tracing) as bus, bus.subscribe("t") as stream:
        for number in range(MANY):
            await bus.publish("t", number)
        assert stream.inbox.run is not None, "a run is open"
        taken = [stream.try_recv() for _ in range(MANY)]
    sampled = [message for message in taken if message.trace]
    assert 15 < len(sampled) < 80
    assert ids_of(tracing.spans) == [message.id for message in sampled]
    for span, message in zip(tracing.spans, sampled, strict=True):
        # The first publish on a topic takes the general path: its span has the clock of the SDK.
        assert span.start_time == span.end_time == message.timestamp_ns or message.seq == 1
        assert (message.trace or "")[3:35] == f"{span.context.trace_id:032x}"


async def test_spans_of_a_burst_that_nobody_takes_are_written_a_second_later(simulation: Simulation) -> None:
    tracing = Tracing(share=SHARE)
    async with connect(simulation, tracing) as bus, bus.subscribe("t") as stream:
        for number in range(MANY):
            await bus.publish("t", number)
        run = stream.inbox.run
        assert run is not None
        assert run.decided < len(run)
        await asyncio.sleep(bus_module.DECIDE_S)
        assert run.decided == len(run)
        written = ids_of(tracing.spans)
        assert stream.inbox.run is run, "the run is still open"
        assert [stream.try_recv().trace is not None for _ in range(MANY)].count(True) == len(written) > 15
        assert ids_of(tracing.spans) == written, "each once"


async def test_closing_the_bus_writes_the_spans_of_an_open_run(simulation: Simulation) -> None:
    tracing = Tracing(share=SHARE)
    async with tl.connect("memory:", world=world(simulation)) as there, there.subscribe("t") as stream:
        async with tl.Bus(there.broker, hooks=[tracing.hook]) as bus:
            for number in range(MANY):
                await bus.publish("t", number)
            assert stream.inbox.run is not None
        written = ids_of(tracing.spans)
        assert written == [message.id for message in [stream.try_recv() for _ in range(MANY)] if message.trace]
        assert len(written) > 15


async def test_what_is_published_for_an_unsampled_message_is_not_sampled_within_a_run(simulation: Simulation) -> None:
    tracing = Tracing(share=SHARE)
    async with connect(simulation, tracing) as bus, bus.subscribe("t") as stream:
        head = tracing.hook.head
        assert head is not None
        inside: list[str] = []
        for number in range(MANY):
            message_id = await bus.publish("t", number)
            if stream.inbox.run is not None:
                token = context.attach(head.unsampled)
                message_id = await bus.publish("t", number)
                context.detach(token)
                inside.append(message_id)
        run = stream.inbox.run
        assert run is not None
        assert inside[-1] in run.ids, "it is in the run, too"
        taken = [stream.try_recv() for _ in range(MANY + len(inside))]
    assert len(inside) > MANY / 2
    assert not [message.id for message in taken if message.trace and message.id in inside]
    assert 15 < len(tracing.spans) < 80


class Broken(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("disk full")


async def test_a_processor_that_fails_is_logged_and_the_messages_arrive(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(SHARE)))
    hook = tl.hooks.Trace(provider.get_tracer("test"))
    async with tl.connect("memory:", world=world(simulation), hooks=[hook]) as bus, bus.subscribe("t") as stream:
        while stream.inbox.run is None:
            await bus.publish("t")
        provider.add_span_processor(Broken())
        before = stream.depth
        with caplog.at_level(logging.ERROR, "trunkline.hooks"):
            for number in range(MANY):
                await bus.publish("t", number)
            taken = [stream.try_recv() for _ in range(before + MANY)]
        assert len(taken) == before + MANY
    assert "could not be written" in caplog.text
    assert "disk full" in caplog.text
