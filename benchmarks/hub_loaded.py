"""How long does a lone message of high priority take while another topic floods the hub? The p99, one way.

There are five processes: publisher and subscriber of the flood, publisher and subscriber of one lone message every 4
ms, and the hub. In `hub-loaded` each side floods as fast as it can. Ours then publishes about four times as many
messages as nats-py, and five processes share two cores: that is the harder case for us. In `hub-loaded-paced` both
floods are the same, 100,000 messages per second. The size is the number of lone messages. With only a hundred, the p99
would be the time of a single message.
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
PER_S = 100_000.0
"""About half of the highest rate of nats-py."""


def loaded(count: int, server: Server[Place], side: ModuleType, crew: Crew, per_s: float | None = None) -> Sample:
    """`side` is the module with the functions of the workers. `per_s` is the rate of the flood."""
    with server.running() as place, crew.running() as (swallower, flooder, receiver, sender):
        receiver.begin(side.receive_lone, place.address, count)
        swallower.begin(side.swallow, place.address)
        swallower.ready()
        flooder.begin(side.flood, place.address, per_s)
        flooder.ready()
        receiver.ready()
        sender.begin(side.publish_lone, place.address, count)
        _, received = results([sender, receiver])
        for worker in (flooder, swallower):
            worker.stop()
            worker.result()
        return quantile(received.value, 99)


def _case(name: str, flood: str, per_s: float | None, target: float | None, transport: str) -> Case:
    workers = crew(4)
    hub = hub_on(transport)
    return Case(
        name=named(name, transport),
        question=f"a lone message of high priority while another topic {flood}, {transport}, p99",
        unit="µs",
        better="less",
        ours=partial(loaded, server=hub, side=hubs, crew=workers, per_s=per_s),
        peers={NATS: partial(loaded, server=nats_core.NATS, side=nats_core, crew=workers, per_s=per_s)},
        target={NATS: target} if transport == UNIX and target is not None else {},
        size=MESSAGES,
        fixed=True,
        round_s=8.0,
        around=partial(together, workers, hub, nats_core.NATS),
    )


case = partial(_case, "hub-loaded", "saturates the hub", None, 1.2)
paced = partial(_case, "hub-loaded-paced", "has 100,000 messages a second", PER_S, None)
