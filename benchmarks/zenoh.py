"""How many messages per second go from one process to another, compared with zenoh in peer mode?

Messages have 100 bytes and are published one by one over a unix socket. The time is from the first publish to the last
message received.
Ours: through a hub in a third process, with routing, backpressure and accounting. Received in batches, on uvloop.
zenoh: in peer mode the two processes are connected directly, without a router. It batches in its own threads, in Rust,
and passes each message to a callback.
"""

from __future__ import annotations

from functools import partial

from benchmarks import hubs, zenoh_peers
from benchmarks.harness import Case
from benchmarks.hub import MANY
from benchmarks.hubs import UNIX, hub_on
from benchmarks.processes import crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate

ZENOH = "zenoh, two peers"


_CREW = crew(2)
_HUB = hub_on(UNIX)
CASE = Case(
    name="zenoh",
    question="from one process to another, 100 bytes",
    unit="messages/s",
    better="more",
    ours=partial(rate, pair=Pair(_HUB, hubs.publish, hubs.subscribe), crew=_CREW),
    peers={
        ZENOH: partial(rate, pair=Pair(zenoh_peers.ZENOH, zenoh_peers.publish, zenoh_peers.subscribe), crew=_CREW),
        MANY: partial(rate, pair=Pair(_HUB, hubs.publish_many, hubs.subscribe), crew=_CREW),
    },
    size=20_000,
    around=partial(together, _CREW, _HUB),
)
