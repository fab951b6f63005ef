"""How many messages per second of processor time go from one process to another, through Redis?

Messages have 100 bytes. The server is the same for both. The time is the processor time of the two clients together: on
a busy machine, elapsed time depends on other processes. redis-py publishes in pipelines of 1,000; ours publishes one by
one, as in typical programs.
"""

from __future__ import annotations

from functools import partial

from benchmarks import redis_tcp
from benchmarks.harness import Case
from benchmarks.processes import crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, client_rate, rate

ALONE = "redis-py, pipelined"
_workers = crew(2)
_ours = Pair(redis_tcp.REDIS, redis_tcp.publish, redis_tcp.subscribe)
_alone = Pair(redis_tcp.REDIS, redis_tcp.publish_alone, redis_tcp.subscribe_alone)

CASE = Case(
    name="redis",
    question="from one process to another through Redis pub/sub, 100 bytes",
    unit="messages/CPU s",
    better="more",
    ours=partial(client_rate, pair=_ours, crew=_workers),
    peers={ALONE: partial(client_rate, pair=_alone, crew=_workers)},
    target={ALONE: 4.0},
    size=20_000,
    around=partial(together, _workers, redis_tcp.REDIS),
)
WALL_CASE = Case(
    name="redis-wall",
    question="the same, by the wall clock",
    unit="messages/s",
    better="more",
    ours=partial(rate, pair=_ours, crew=_workers),
    peers={ALONE: partial(rate, pair=_alone, crew=_workers)},
    size=20_000,
    around=partial(together, _workers, redis_tcp.REDIS),
)
