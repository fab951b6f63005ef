"""All cases, by name, in the order they are listed and run."""

from __future__ import annotations

from benchmarks import (
    backpressure,
    fanout,
    handler,
    inproc,
    inproc_batch,
    journal,
    journal_arrow,
    journal_growth,
    journal_latency,
    journal_many,
    journal_read,
    memory,
    request,
    routing,
    routing_new,
    stats,
)
from benchmarks.harness import Case

_MODULES = (
    inproc,
    inproc_batch,
    fanout,
    request,
    memory,
    routing,
    routing_new,
    stats,
    handler,
    backpressure,
    journal,
    journal_many,
    journal_read,
    journal_arrow,
    journal_latency,
    journal_growth,
)
CASES: dict[str, Case] = {module.CASE.name: module.CASE for module in _MODULES}
