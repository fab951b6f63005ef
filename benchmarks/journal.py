"""How many messages per second are published durably, with 1,000 in flight?

Durable means: on disk before the publish returns.
Ours: `bus.pipeline`, whose block ends when everything is on disk. A commit syncs all messages that have gathered since
the last one. The peers promise less: JetStream syncs every two minutes, Redis every second, both after the
acknowledgement.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks import jetstream, redis_stream
from benchmarks.durable import payloads
from benchmarks.harness import Case, Sample
from benchmarks.peers import rate
from benchmarks.servers import directory, together
from benchmarks.stored import publish_each, publish_piped, ready
from trunkline import connect

JETSTREAM = "JetStream publish_async"
REDIS = "Redis XADD, everysec"


async def ours(count: int, *, tasks: bool = False) -> Sample:
    messages = payloads(count)
    publish = publish_each if tasks else publish_piped
    with directory() as folder:
        async with connect("memory:", journal=folder) as bus:
            await ready(bus)
            began = time.perf_counter()
            await publish(bus, messages)
            return rate(count, began)


CASE = Case(
    name="journal",
    question="durable publishes of 100 bytes, 1,000 under way",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={
        JETSTREAM: jetstream.publish_rate,
        REDIS: redis_stream.add_rate,
        "ours by 1,000 tasks": partial(ours, tasks=True),
    },
    around=partial(together, jetstream.JETSTREAM, redis_stream.EVERYSEC),
    target={JETSTREAM: 10.0, REDIS: 2.0},
    aim={JETSTREAM: 15.0},
)
