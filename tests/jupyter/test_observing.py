"""Observing the client of a kernel: counters, spans, and its state on the bus."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import trunkline as tl
from tests.jupyter.scripted import ScriptedLink, kernel_of, world_of
from trunkline.jupyter import Kernel, Tracing, export, join
from trunkline.jupyter.gateway import Gateway
from trunkline.jupyter.kernel import Life
from trunkline.jupyter.publisher import KernelPublisher
from trunkline.testing import Simulation, simulate, world


def test_prometheus_has_the_figures() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation, ScriptedLink(world_of(simulation), simulation.random, welcomes=False))
        await kernel.open()
        registry = CollectorRegistry()
        export(kernel, registry)
        await (await kernel.execute("…")).result()
        link.say("iopub", "status", {"execution_state": "starting"}, {})
        link.receive("iopub", [b"garbage"])
        shown = generate_latest(registry).decode()
        assert 'trunkline_kernel_active_requests{kernel="k1"} 0.0' in shown
        assert 'trunkline_kernel_orphan_messages{kernel="k1"} 1.0' in shown
        assert 'trunkline_kernel_orphans_total{kernel="k1",why="no_request_id"} 1.0' in shown
        assert 'trunkline_kernel_faults_total{fault="malformed",kernel="k1"} 1.0' in shown
        assert 'trunkline_kernel_messages_total{kernel="k1",to="orphaned"} 1.0' in shown
        await kernel.aclose()

    simulate(main)


def test_a_request_is_a_span_and_its_outputs_are_in_its_trace() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main(simulation: Simulation) -> None:
        async with (
            tl.connect(world=world(simulation)) as bus,
            bus.subscribe("kernel.*.iopub.stream") as streams,
        ):
            link = ScriptedLink(world_of(simulation), simulation.random)
            tracing = Tracing(provider.get_tracer("test"))
            kernel = Kernel("k1", link, session="s", world=link.world, bus=bus, tracing=tracing)
            await kernel.open()
            execution = await kernel.execute("print('hello')")
            await execution.result()
            link.deaf = True
            given_up = await kernel.execute("never")
            given_up.close()
            await kernel.aclose()
            published = await streams.recv(timeout_s=5)
            assert published is not None
            assert published.trace is not None
            traces.append(published.trace)
            asked.append(execution.id)

    traces: list[str] = []
    asked: list[str] = []
    simulate(main)
    spans = {
        (span.attributes or {})["messaging.message.id"]: span
        for span in exporter.get_finished_spans()
        if span.name == "kernel execute_request"
    }
    done = spans.pop(asked[0])
    assert (done.attributes or {})["trunkline.complete"] is True
    assert done.context is not None
    assert format(done.context.trace_id, "032x") in traces[0]
    (other,) = spans.values()
    assert not other.status.is_ok
    assert "did not arrive" in (other.status.description or "")


async def shared(simulation: Simulation, bus: tl.Bus, life: Life | None = None) -> tuple[Kernel, ScriptedLink]:
    kernel, link = kernel_of(simulation)
    kernel.life = life
    kernel.client.publisher = KernelPublisher(bus, kernel.session, 1000)
    gateway = Gateway(kernel, bus)
    await gateway.open()
    kernel.on_close(gateway.aclose)
    await kernel.open()
    return kernel, link


def test_those_on_the_bus_hear_that_it_died() -> None:
    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation)) as bus:
            kernel, link = await shared(simulation, bus)
            async with join(bus, kernel.id) as agent:
                assert (await agent.run("…")).ok
                link.deaf = True
                execution = await agent.execute("…")
                kernel.lost("its process was ended by SIGKILL")
                with pytest.raises(tl.KernelDied, match="SIGKILL"):
                    await execution.result()
            await kernel.aclose()

    simulate(main)


def test_those_on_the_bus_hear_that_it_is_not_shared_any_more() -> None:
    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation)) as bus:
            kernel, link = await shared(simulation, bus)
            async with join(bus, kernel.id) as agent:
                link.deaf = True
                execution = await agent.execute("…")
                await kernel.aclose()
                with pytest.raises(tl.KernelDied, match="the client that shared it was closed"):
                    await execution.result()

    simulate(main)


def test_a_restart_ends_what_was_asked_and_holds_back_what_is_asked_meanwhile() -> None:
    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation)) as bus:

            async def restart() -> None:
                await asyncio.sleep(2)
                link.deaf = False

            async def nothing(now: bool = False) -> None:
                return

            kernel, link = await shared(simulation, bus, Life(nothing, restart, nothing))
            async with join(bus, kernel.id) as agent:
                link.deaf = True
                asked = [await kernel.execute("…"), await agent.execute("…")]
                restarting = asyncio.ensure_future(kernel.restart())
                await asyncio.sleep(1)
                held = asyncio.ensure_future(kernel.run("…"))
                for execution in asked:
                    with pytest.raises(tl.KernelRestarted):
                        await execution.result()
                await restarting
                assert (await held).ok
                assert (await agent.run("…")).ok
            await kernel.aclose()

    simulate(main)


def test_a_restart_that_fails_is_a_death() -> None:
    async def main(simulation: Simulation) -> None:
        async def restart() -> None:
            raise OSError("no room")

        async def nothing(now: bool = False) -> None:
            return

        kernel, _ = kernel_of(simulation)
        kernel.life = Life(nothing, restart, nothing)
        await kernel.open()
        with pytest.raises(OSError, match="no room"):
            await kernel.restart()
        with pytest.raises(tl.KernelDied, match="its restart failed"):
            await kernel.execute("…")
        await kernel.aclose()

    simulate(main)


def test_a_handler_its_execution_and_who_handles_the_output_are_one_trace() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    async def main(simulation: Simulation) -> None:
        shown = asyncio.Event()
        async with tl.connect(world=world(simulation), hooks=[tl.hooks.Trace(tracer)]) as bus:
            link = ScriptedLink(world_of(simulation), simulation.random)
            kernel = Kernel("k1", link, session="s", world=link.world, bus=bus, tracing=Tracing(tracer))
            await kernel.open()

            @bus.on("cells")
            async def run(code: str) -> None:
                await (await kernel.execute(code)).result()

            @bus.on("kernel.*.iopub.stream")
            async def show() -> None:
                shown.set()

            await bus.publish("cells", "print('hello')")
            await shown.wait()
            await bus.quiet()
            await kernel.aclose()

    simulate(main)
    spans = exporter.get_finished_spans()
    (handled,) = (span for span in spans if span.name == "handle cells")
    (executed,) = (span for span in spans if span.name == "kernel execute_request" and span.parent is not None)
    (shown, *_) = (span for span in spans if span.name == "handle kernel.*.iopub.stream")
    assert executed.parent is not None
    assert executed.parent.span_id == handled.context.span_id
    assert shown.context.trace_id == executed.context.trace_id == handled.context.trace_id
