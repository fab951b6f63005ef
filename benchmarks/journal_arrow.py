"""How long does it take per message to read all stored messages as Arrow batches? The limit is a million per second.

Measured for the journal and for the lake.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks.harness import Case, Sample
from benchmarks.stored import stored
from trunkline.journal import Reader


async def read(count: int, *, sealed: bool) -> Sample:
    async with stored(count, sealed=sealed) as folder:
        with Reader(folder) as reader:
            began = time.perf_counter()
            rows = sum(batch.num_rows for batch in reader.arrow("bench.>"))
            took_s = time.perf_counter() - began
    assert rows == count
    return Sample(took_s / count * 1e9, took_s)


CASE = Case(
    name="journal-arrow",
    question="a stored message, all read from the journal as Arrow batches",
    unit="ns",
    better="less",
    ours=partial(read, sealed=False),
    peers={"from the lake": partial(read, sealed=True)},
    limit=1000.0,
    size=10_000,
)
