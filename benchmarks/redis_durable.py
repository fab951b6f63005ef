"""How many messages per second of processor time are stored in a Redis stream, consumed and acknowledged?

Messages have 100 bytes. The server is the same for both, and syncs before it confirms. The time is that of the two
clients together. redis-py stores, reads and acknowledges 500 at a time; ours has up to 10,000 in flight. The peer is
the asyncio client, because ours also runs in an event loop. The blocking client with raw commands is the fastest way to
use redis-py.
"""

from __future__ import annotations

from functools import partial

from benchmarks import redis_tcp
from benchmarks.harness import Case
from benchmarks.processes import crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, client_rate, rate

ALONE = "redis-py asyncio, by 500"
BLOCKING = "redis-py blocking, by 500"
_workers = crew(2)
_ours = Pair(redis_tcp.SYNCED, redis_tcp.store, redis_tcp.consume)
_alone = Pair(redis_tcp.SYNCED, redis_tcp.store_async, redis_tcp.consume_async)
_blocking = Pair(redis_tcp.SYNCED, redis_tcp.store_alone, redis_tcp.consume_alone)

CASE = Case(
    name="redis-durable",
    question="stored in a Redis stream, consumed and acknowledged, 100 bytes",
    unit="messages/CPU s",
    better="more",
    ours=partial(client_rate, pair=_ours, crew=_workers),
    peers={
        ALONE: partial(client_rate, pair=_alone, crew=_workers),
        BLOCKING: partial(client_rate, pair=_blocking, crew=_workers),
    },
    target={ALONE: 4.0},
    size=20_000,
    around=partial(together, _workers, redis_tcp.SYNCED),
)
WALL_CASE = Case(
    name="redis-durable-wall",
    question="the same, by the wall clock",
    unit="messages/s",
    better="more",
    ours=partial(rate, pair=_ours, crew=_workers),
    peers={
        ALONE: partial(rate, pair=_alone, crew=_workers),
        BLOCKING: partial(rate, pair=_blocking, crew=_workers),
    },
    size=20_000,
    around=partial(together, _workers, redis_tcp.SYNCED),
)
