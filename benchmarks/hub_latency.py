"""How long is a round trip of request and response between two processes, one at a time, without other traffic?

The p50 and the p99 are separate cases.
"""

from __future__ import annotations

from functools import partial

from benchmarks import hubs, nats_core
from benchmarks.harness import Case, Sample
from benchmarks.hubs import UNIX, hub_on, named
from benchmarks.processes import Crew, crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, ask, quantile

NATS = "nats-py request"
AIM = 1 / 0.6
"""At most 0.6 times as long as the peer."""


def latency(count: int, percent: int, pair: Pair, crew: Crew) -> Sample:
    return quantile(ask(count, pair, crew), percent)


def _case(name: str, percent: int, target: float, transport: str) -> Case:
    workers = crew(2)
    hub = hub_on(transport)
    ours = Pair(hub, hubs.request, hubs.respond)
    peer = Pair(nats_core.NATS, nats_core.request, nats_core.respond)
    return Case(
        name=named(name, transport),
        question=f"a request and its response between two processes, {transport}, p{percent}",
        unit="µs",
        better="less",
        ours=partial(latency, percent=percent, pair=ours, crew=workers),
        peers={NATS: partial(latency, percent=percent, pair=peer, crew=workers)},
        target={NATS: target} if transport == UNIX else {},
        aim={NATS: AIM} if transport == UNIX else {},
        size=500,
        around=partial(together, workers, hub, nats_core.NATS),
    )


case = partial(_case, "hub-latency", 50, 1.3)
p99 = partial(_case, "hub-latency-p99", 99, 1.1)
