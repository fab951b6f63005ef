"""What do metrics and traces cost?

One process publishes to one subscriber, as in `inproc`. Metrics are exported to Prometheus and scraped once in each
measurement, which is more often than in production. The variant has the hook `Trace` and samples one publish in a
hundred.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks import inproc
from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, TOPIC, rate
from trunkline import Stream, connect, hooks
from trunkline.dashboard.metrics import export_bus

OFF = "not observed"
SAMPLED = 0.01


async def with_metrics(count: int) -> Sample:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    async with connect() as bus, bus.subscribe(TOPIC) as stream:
        export_bus(bus, registry)
        began = time.perf_counter()
        reader = asyncio.create_task(_read(stream, count))
        for number in range(count):
            await bus.publish(TOPIC, PAYLOAD)
            if number == count // 2:
                generate_latest(registry)
        await reader
        return rate(count, began)


async def with_traces(count: int) -> Sample:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    provider = TracerProvider(sampler=TraceIdRatioBased(SAMPLED))
    used: Sequence[hooks.Hook] = [hooks.Trace(provider.get_tracer("benchmark"))]
    async with connect(hooks=used) as bus, bus.subscribe(TOPIC) as stream:
        began = time.perf_counter()
        reader = asyncio.create_task(_read(stream, count))
        for _ in range(count):
            await bus.publish(TOPIC, PAYLOAD)
        await reader
        return rate(count, began)


async def _read(stream: Stream, count: int) -> None:
    async for _ in stream:
        count -= 1
        if not count:
            return


CASE = Case(
    name="observe",
    question="publish to one subscriber with metrics exported",
    unit="messages/s",
    better="more",
    ours=with_metrics,
    peers={OFF: inproc.ours},
    target={OFF: 0.95},
)

TRACES = Case(
    name="observe-traces",
    question="publish to one subscriber with 1 % of traces sampled",
    unit="messages/s",
    better="more",
    ours=with_traces,
    peers={OFF: inproc.ours},
    # Every publish looks up the current context, which takes 5 % of its time, and one sampled message takes as long as
    # five to eight others.
    target={OFF: 0.9},
)
