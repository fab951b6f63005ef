"""How many messages per second go from one process to another through a hub, if they are published in batches?

Messages have 100 bytes. The time is from the first publish to the last message received. Ours publishes 256 payloads at
a time with `publish_many`, which sends them as one frame, and receives in batches with all header fields. A second row
receives only payloads, because a message of nats-py has no more than a subject and a payload. nats-py has no call for
several messages. It publishes one by one into a buffer that is sent in large writes, yields to its event loop after
every 500, and receives with a callback, which is its fastest way.
"""

from __future__ import annotations

from functools import partial

from benchmarks import hubs
from benchmarks.harness import Case
from benchmarks.hub import MANY, NATS, pairs
from benchmarks.hubs import UNIX, named
from benchmarks.processes import crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate

PAYLOADS = "ours, payloads only"


def case(transport: str) -> Case:
    workers = crew(2)
    sides = {name: pair for name, pair in pairs(transport).items() if name in (MANY, NATS)}
    sides[PAYLOADS] = Pair(sides[MANY].server, hubs.publish_many, hubs.subscribe_payloads)
    measures = {name: partial(rate, pair=pair, crew=workers) for name, pair in sides.items()}
    return Case(
        name=named("hub-many", transport),
        question=f"from one process to another through a hub, 256 at a time, {transport}, 100 bytes",
        unit="messages/s",
        better="more",
        ours=measures.pop(MANY),
        peers=measures,
        target={NATS: 8.0} if transport == UNIX else {},
        size=50_000,
        around=partial(together, workers, *(pair.server for pair in sides.values())),
    )
