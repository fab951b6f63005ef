"""How many deliveries per second does a hub make from one process to four others? 100 bytes each, as in `hub`."""

from __future__ import annotations

from functools import partial

from benchmarks import hubs, nats_core
from benchmarks.harness import Case
from benchmarks.hubs import UNIX, hub_on, named
from benchmarks.processes import crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate

NATS = "nats-py"
SUBSCRIBERS = 4


def case(transport: str) -> Case:
    workers = crew(1 + SUBSCRIBERS)
    hub = hub_on(transport)
    ours = Pair(hub, hubs.publish, hubs.subscribe)
    peer = Pair(nats_core.NATS, nats_core.publish, nats_core.subscribe)
    return Case(
        name=named("hub-fanout", transport),
        question=f"from one process to four others through a hub, {transport}, 100 bytes",
        unit="deliveries/s",
        better="more",
        ours=partial(rate, pair=ours, crew=workers),
        peers={NATS: partial(rate, pair=peer, crew=workers)},
        target={NATS: 3.0} if transport == UNIX else {},
        size=10_000,
        around=partial(together, workers, hub, nats_core.NATS),
    )
