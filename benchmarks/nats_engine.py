"""Trunkline on a nats-server compared with nats-py on the same server: throughput, and latency of a lone message.

Messages have 100 bytes. Ours publishes one by one, as in typical programs, and receives in batches. nats-py publishes
one by one and receives with a callback, which is its fastest way. Throughput is messages per second of processor time
of both clients: the server is the same, and a busy machine has little influence.
"""

from __future__ import annotations

import asyncio
from functools import partial

from benchmarks import hubs, nats_core
from benchmarks.harness import OURS, Case, Sample
from benchmarks.processes import Crew, Line, crew
from benchmarks.servers import together
from benchmarks.stamps import EVERY_S, age_ns, stamped
from benchmarks.traffic import Pair, client_rate, quantile
from trunkline import connect

NATS = "nats-py"
LONE_TARGET = 1 / 1.3
"""At most 1.3 times as long as the peer."""

_workers = crew(2)
_sides = {
    OURS: Pair(nats_core.NATS, hubs.publish, hubs.subscribe),
    NATS: Pair(nats_core.NATS, nats_core.publish, nats_core.subscribe),
}
CASE = Case(
    name="nats",
    question="from one process to another through a nats-server, 100 bytes",
    unit="messages/CPU s",
    better="more",
    ours=partial(client_rate, pair=_sides[OURS], crew=_workers),
    peers={NATS: partial(client_rate, pair=_sides[NATS], crew=_workers)},
    target={NATS: 3.0},
    size=20_000,
    around=partial(together, _workers, nats_core.NATS),
)


async def publish_lone(line: Line, address: str, count: int) -> None:
    """Publish a message with a timestamp every few milliseconds."""
    async with connect(address) as bus:
        await hubs.arrive(bus)
        line.ready()
        for _ in range(count):
            await asyncio.sleep(EVERY_S)
            await bus.publish(hubs.LONE, stamped())
        await bus.flush()


async def receive_lone(line: Line, address: str, count: int) -> list[int]:
    """Returns the age of each message when it was received."""
    async with connect(address) as bus, bus.subscribe(hubs.LONE) as stream:
        line.ready()
        ages: list[int] = []
        async for message in stream:
            ages.append(age_ns(bytes(message.payload)))
            if len(ages) == count:
                break
        return ages


def lone(count: int, pair: Pair, crew: Crew) -> Sample:
    """The p50 of the age of messages when they are received, with one message every few milliseconds."""
    with pair.server.running() as place, crew.running() as (sender, receiver):
        receiver.begin(pair.takes, place.address, count)
        receiver.ready()
        sender.begin(pair.sends, place.address, count)
        sender.result()
        return quantile(receiver.result().value, 50)


LONE = Case(
    name="nats-lone",
    question="a lone message from one process to another through a nats-server, p50",
    unit="µs",
    better="less",
    ours=partial(lone, pair=Pair(nats_core.NATS, publish_lone, receive_lone), crew=_workers),
    peers={
        NATS: partial(lone, pair=Pair(nats_core.NATS, nats_core.publish_lone, nats_core.receive_lone), crew=_workers)
    },
    target={NATS: LONE_TARGET},
    size=200,
    around=partial(together, _workers, nats_core.NATS),
)
