"""Does the journal get slower as it grows: durable publishes with 10 million stored, and with 100 thousand?

The size of the case is what is stored; 1,000 are under way, as in the case `journal`.
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
    """Messages per second into a journal that holds `count`, or a part of it. Filling it is off the clock."""
    messages = payloads(min(count, PUBLISHED))
    with directory() as folder:
        async with connect("memory:", journal=folder) as bus:
            await publish_batches(bus, count // divided_by)
            # The disk is still busy with what was stored, for longer after more of it: that is not the question.
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
