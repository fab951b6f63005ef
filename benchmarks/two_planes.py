"""How many arrays of 8 MiB go from one process to another, through a hub in a third process, on one host?

The same program runs on the same bus with and without shared memory. nats-py sends the bytes of the array, and the
receiver makes an array of them. The subscriber reads a number of every page. The first arrays are not measured: writing
memory for the first time takes ten times as long, and a long-running program does it only once.
"""

from __future__ import annotations

from functools import partial

from benchmarks import array_traffic, nats_core
from benchmarks.harness import OURS, Case
from benchmarks.hubs import UNIX, hub_on
from benchmarks.processes import crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate

OFF = "ours, without shared memory"
NATS = "nats-py"

_HUB = hub_on(UNIX)
_WORKERS = crew(2)
_PAIRS = {
    OURS: Pair(_HUB, array_traffic.publish_shared, array_traffic.subscribe_shared),
    OFF: Pair(_HUB, array_traffic.publish_inline, array_traffic.subscribe_inline),
    NATS: Pair(nats_core.NATS, array_traffic.publish_nats, array_traffic.subscribe_nats),
}
_MEASURES = {name: partial(rate, pair=pair, crew=_WORKERS) for name, pair in _PAIRS.items()}

CASE = Case(
    name="two-planes",
    question="arrays of 8 MiB from one process to another through a hub, with and without shared memory",
    unit="arrays/s",
    better="more",
    ours=_MEASURES[OURS],
    peers={OFF: _MEASURES[OFF], NATS: _MEASURES[NATS]},
    target={OFF: 3.0, NATS: 2.0},
    size=20,
    around=partial(together, _WORKERS, _HUB, nats_core.NATS),
)
