"""How fast does a durable subscription read stored messages, one by one, with an acknowledgement for each?

Measured for the journal and for the lake.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks.harness import Case, Sample
from benchmarks.jetstream import JETSTREAM as SERVER
from benchmarks.jetstream import replay_rate
from benchmarks.peers import rate
from benchmarks.stored import stored
from trunkline import connect

JETSTREAM = "JetStream pull with ack"


async def replay(count: int, *, sealed: bool) -> Sample:
    async with stored(count, sealed=sealed) as folder, connect("memory:", journal=folder) as bus:
        left = count
        began = time.perf_counter()
        async with bus.subscribe("bench.>", name="reader", durable=True, start="beginning") as messages:
            async for message in messages:
                messages.ack(message)
                left -= 1
                if not left:
                    break
        return rate(count, began)


CASE = Case(
    name="journal-read",
    question="replay from the journal by a durable subscription, each message acknowledged",
    unit="messages/s",
    better="more",
    ours=partial(replay, sealed=False),
    peers={JETSTREAM: replay_rate, "ours from the lake": partial(replay, sealed=True)},
    around=SERVER.running,
    target={JETSTREAM: 3.0},
)
