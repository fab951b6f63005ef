"""How many messages per second are published durably by `publish_many` of 1,000, one batch after another?"""

from __future__ import annotations

import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import rate
from benchmarks.redis_stream import EVERYSEC, add_rate
from benchmarks.servers import directory
from benchmarks.stored import publish_batches, ready
from trunkline import connect

REDIS = "Redis XADD by 1,000, everysec"


async def ours(count: int) -> Sample:
    with directory() as folder:
        async with connect("memory:", journal=folder) as bus:
            await ready(bus)
            began = time.perf_counter()
            await publish_batches(bus, count)
            return rate(count, began)


CASE = Case(
    name="journal-many",
    question="durable publish_many of 1,000",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={REDIS: add_rate},
    around=EVERYSEC.running,
    target={REDIS: 3.4},
    aim={REDIS: 4.0},
)
