"""How long does one durable publish take, one at a time? The target is twice a bare append with fdatasync.

Ours: `await bus.publish` on a durable topic. The message is a row with a checksum and an index in SQLite, which appends
a few pages to its log and syncs it. As long as the disk is fast, this happens in the thread of the event loop.
The peer: 200 bytes appended to a file with `write`, and one `fdatasync`.
"""

from __future__ import annotations

import time

from benchmarks.disk import append_p50, settle
from benchmarks.durable import TOPIC, payloads
from benchmarks.harness import Case, Sample
from benchmarks.request import p50
from benchmarks.servers import directory
from benchmarks.stored import ready
from trunkline import connect

SYNC = "append 200 bytes, fdatasync"


async def ours(count: int) -> Sample:
    times: list[int] = []
    with directory() as folder:
        async with connect("memory:", journal=folder) as bus:
            await ready(bus)
            settle()
            for payload in payloads(count):
                began = time.perf_counter_ns()
                await bus.publish(TOPIC, payload)
                times.append(time.perf_counter_ns() - began)
    return p50(times)


CASE = Case(
    name="journal-latency",
    question="a durable publish, one at a time, p50",
    unit="µs",
    better="less",
    ours=ours,
    peers={SYNC: append_p50},
    target={SYNC: 0.5},
    aim={SYNC: 0.6},
    size=100,
)
