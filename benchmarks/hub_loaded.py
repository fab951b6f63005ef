"""How long does a lone message of high priority take while another topic saturates the hub? The p99, one way.

Five processes: a publisher as fast as it can go and its subscriber, one who publishes every 4 ms and one who receives
that, and the hub. The aim is to be no slower than the peer. Ours is made to publish as fast as it can, too,
which is about four times as much as nats-py publishes, and five processes share two cores: with a publisher that is a
third slower, the lone message took 1.0 ms instead of 3. The size is how many lone messages are sent; of a hundred, the
p99 would be that of one message.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from benchmarks import hubs, nats_core
from benchmarks.harness import Case, Sample
from benchmarks.hubs import UNIX, hub_on, named
from benchmarks.processes import Crew, crew, results
from benchmarks.servers import Place, Server, together
from benchmarks.traffic import quantile

NATS = "nats-py"
MESSAGES = 500


def loaded(count: int, server: Server[Place], side: ModuleType, crew: Crew) -> Sample:
    """`side` is the module with what the workers do."""
    with server.running() as place, crew.running() as (swallower, flooder, receiver, sender):
        receiver.begin(side.receive_lone, place.address, count)
        for worker, work in ((swallower, side.swallow), (flooder, side.flood)):
            worker.begin(work, place.address)
            worker.ready()
        receiver.ready()
        sender.begin(side.publish_lone, place.address, count)
        _, received = results([sender, receiver])
        for worker in (flooder, swallower):
            worker.stop()
            worker.result()
        return quantile(received.value, 99)


def case(transport: str) -> Case:
    workers = crew(4)
    hub = hub_on(transport)
    return Case(
        name=named("hub-loaded", transport),
        question=f"a lone message of high priority while another topic saturates the hub, {transport}, p99",
        unit="µs",
        better="less",
        ours=partial(loaded, server=hub, side=hubs, crew=workers),
        peers={NATS: partial(loaded, server=nats_core.NATS, side=nats_core, crew=workers)},
        target={NATS: 0.4} if transport == UNIX else {},
        aim={NATS: 1.0} if transport == UNIX else {},
        size=MESSAGES,
        fixed=True,
        round_s=8.0,
        around=partial(together, workers, hub, nats_core.NATS),
    )
