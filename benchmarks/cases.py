"""All cases, by name, in the order they are listed and run."""

from __future__ import annotations

from benchmarks import (
    backpressure,
    fanout,
    handler,
    inproc,
    inproc_batch,
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
)
CASES: dict[str, Case] = {module.CASE.name: module.CASE for module in _MODULES}
