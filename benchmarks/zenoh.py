"""How many messages a second go from one process to another, beside zenoh between two peers?

100 bytes each, one by one, from the first publish to the last message received, over a unix socket.
Ours: through a hub in a third process, which routes, bounds and accounts; received in batches, on uvloop.
zenoh: in peer mode the two processes are connected directly, without a router; it batches in threads of its own, in
Rust, and hands each message to a callback.
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
