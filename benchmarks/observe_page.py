"""What does the open page cost a hub at 10,000 messages a second?

The result is the hub's processor time for these messages while the model of the page polls it, minus the time without
polling.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from benchmarks import hubs
from benchmarks.durable import TOPIC, payloads
from benchmarks.harness import Case, Sample
from benchmarks.hub_cost import cpu_s
from benchmarks.servers import Place
from trunkline import Stream, connect

if TYPE_CHECKING:
    from trunkline.dashboard.page.model.model import PageModel

HUB = hubs.hub_on(hubs.UNIX)
PER_S = 10_000
EVERY_S = 0.01
LEAST = 0.01
"""Percent. Processor time is counted in hundredths of a second, so a short measurement could give a negative cost."""


async def ours(seconds: int) -> Sample:
    from trunkline.dashboard.page.model.model import PageModel

    began = time.perf_counter()
    with HUB.running() as place:
        async with PageModel(hub=place.address) as model:
            alone_s = await _per_message(place, model, seconds, looks=False)
            with_s = await _per_message(place, model, seconds, looks=True)
    return Sample(max(LEAST, (with_s - alone_s) * PER_S * 100), time.perf_counter() - began)


async def _per_message(place: Place, model: PageModel, seconds: int, *, looks: bool) -> float:
    """Processor time of the hub per message, in seconds."""
    async with connect(place.address) as bus, bus.subscribe(TOPIC) as stream:
        taking = asyncio.create_task(_take(stream))
        before_s, begin, sent = cpu_s(place.pid), time.monotonic(), 0
        while (now := time.monotonic()) < begin + seconds:
            due = min(int((now - begin) * PER_S) - sent, 1000)
            if due > 0:
                await bus.publish_many(TOPIC, payloads(due))
                sent += due
            if looks:
                model.look()
            await asyncio.sleep(EVERY_S)
        await bus.flush()
        spent_s = cpu_s(place.pid) - before_s
        taking.cancel()
        await asyncio.wait([taking])
    return spent_s / sent


async def _take(stream: Stream) -> None:
    async for _ in stream.batches():
        pass


CASE = Case(
    name="observe-page",
    question="what the open page costs a hub at 10,000 messages a second",
    unit="% of a core",
    better="less",
    ours=ours,
    limit=5.0,
    size=10,
    fixed=True,
    rounds=3,
    round_s=20.0,
)
