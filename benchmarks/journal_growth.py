"""Does the journal get slower as it grows? Durable publishes with 10 million messages stored, and with 100 thousand.

The size of the case is the number of stored messages. 1,000 are in flight, as in the case `journal`.
"""

from __future__ import annotations

import os
import time
from functools import partial

from benchmarks.durable import payloads
from benchmarks.harness import Case, Sample
from benchmarks.peers import rate
from benchmarks.servers import directory
from benchmarks.stored import publish_batches, publish_piped
from trunkline import connect

STORED = 10_000_000
FEWER = 100
PUBLISHED = 100_000
SMALL = "100 thousand stored"


async def grown(count: int, *, divided_by: int = 1) -> Sample:
    """Messages per second into a journal with `count / divided_by` messages. Filling the journal is not measured."""
    messages = payloads(min(count, PUBLISHED))
    with directory() as folder:
        async with connect("memory:", journal=folder) as bus:
            await publish_batches(bus, count // divided_by)
            # The disk is still writing stored messages, for longer if there are more. That must not be measured.
            os.sync()
            began = time.perf_counter()
            await publish_piped(bus, messages)
            return rate(len(messages), began)


CASE = Case(
    name="journal-growth",
    question="durable publishes with 10 million stored, 1,000 under way",
    unit="messages/s",
    better="more",
    ours=grown,
    peers={SMALL: partial(grown, divided_by=FEWER)},
    target={SMALL: 0.8},
    size=STORED,
    fixed=True,
    round_s=35.0,
)
