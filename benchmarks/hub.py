"""How many messages per second go from one process to another, through a hub in a third process?

Messages have 100 bytes. The time is from the first publish to the last message received. Ours publishes one by one, as
in typical programs, and receives in batches. Both peers lose nothing, and are used in their fastest way.
"""

from __future__ import annotations

from functools import partial

from benchmarks import hubs, nats_core, redis_pubsub
from benchmarks.harness import OURS, Case
from benchmarks.hubs import UNIX, ZMQ_IPC, hub_on, named
from benchmarks.processes import crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate

NATS = "nats-py"
REDIS = "redis pub/sub"
MANY = "ours, 256 by publish_many"
EACH = "ours, received one by one"
TARGETS = {UNIX: {NATS: 3.3, REDIS: 5.5}, ZMQ_IPC: {NATS: 2.0}}
AIMS = {UNIX: {NATS: 6.0, REDIS: 8.0}, ZMQ_IPC: {NATS: 4.0}}


def pairs(transport: str) -> dict[str, Pair]:
    """The measured sides by name."""
    hub = hub_on(transport)
    return {
        OURS: Pair(hub, hubs.publish, hubs.subscribe),
        NATS: Pair(nats_core.NATS, nats_core.publish, nats_core.subscribe),
        REDIS: Pair(redis_pubsub.REDIS, redis_pubsub.publish, redis_pubsub.subscribe),
        MANY: Pair(hub, hubs.publish_many, hubs.subscribe),
        EACH: Pair(hub, hubs.publish, hubs.subscribe_each),
    }


def case(transport: str) -> Case:
    workers = crew(2)
    sides = pairs(transport)
    measures = {name: partial(rate, pair=pair, crew=workers) for name, pair in sides.items()}
    return Case(
        name=named("hub", transport),
        question=f"from one process to another through a hub, {transport}, 100 bytes",
        unit="messages/s",
        better="more",
        ours=measures.pop(OURS),
        peers=measures,
        target=TARGETS.get(transport, {}),
        aim=AIMS.get(transport, {}),
        size=20_000,
        around=partial(together, workers, sides[OURS].server, nats_core.NATS, redis_pubsub.REDIS),
    )
