"""What do scraped metrics and sampled traces cost with a hub?

Messages go from one process to another, as in `hub`. The hub with metrics is scraped once in each measurement, which is
more often than in production. With traces, both clients have the hook `Trace`, and one publish in a hundred is sampled.
"""

from __future__ import annotations

import time
from functools import partial
from threading import Thread
from urllib.request import urlopen

from benchmarks import hubs
from benchmarks.durable import TOPIC, payloads
from benchmarks.harness import Case, Sample
from benchmarks.observe import OFF, SAMPLED
from benchmarks.processes import Crew, Line, crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate
from trunkline import Bus, connect, hooks

HUB = hubs.hub_on(hubs.UNIX)
METERED = hubs.hub_with_metrics()


def scraped(count: int, workers: Crew) -> Sample:
    with METERED.running() as place:
        scraper = Thread(target=_scrape, args=(place.metrics,))
        scraper.start()
        try:
            return rate(count, Pair(METERED, hubs.publish, hubs.subscribe), workers)
        finally:
            scraper.join()


def _scrape(url: str) -> None:
    with urlopen(url) as page:
        assert b"trunkline_" in page.read()


def _traced(address: str) -> Bus:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(SAMPLED))
    return connect(address, hooks=[hooks.Trace(provider.get_tracer("benchmark"))])


async def publish_traced(line: Line, address: str, count: int) -> int:
    messages = payloads(count)
    async with _traced(address) as bus:
        await hubs.arrive(bus)
        line.ready()
        began_ns = time.perf_counter_ns()
        for payload in messages:
            await bus.publish(TOPIC, payload)
        await bus.flush()
    return began_ns


async def subscribe_traced(line: Line, address: str, count: int) -> int:
    async with _traced(address) as bus, bus.subscribe(TOPIC) as stream:
        line.ready()
        async for batch in stream.batches():
            count -= len(batch)
            if count <= 0:
                break
        return time.perf_counter_ns()


_WORKERS = crew(2)
_CASE = partial(
    Case,
    unit="messages/s",
    better="more",
    peers={OFF: partial(rate, pair=Pair(HUB, hubs.publish, hubs.subscribe), crew=_WORKERS)},
    size=20_000,
)
CASE = _CASE(
    name="observe-hub",
    question="from one process to another through a hub with metrics exported",
    ours=partial(scraped, workers=_WORKERS),
    target={OFF: 0.95},
    around=partial(together, _WORKERS, HUB, METERED),
)
TRACES = _CASE(
    name="observe-hub-traces",
    question="from one process to another through a hub, 1 % of traces sampled",
    ours=partial(rate, pair=Pair(HUB, publish_traced, subscribe_traced), crew=_WORKERS),
    target={OFF: 0.85},
    aim={OFF: 0.9},
    around=partial(together, _WORKERS, HUB),
)
