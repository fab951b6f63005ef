"""The common workload of the journal and its peers: a topic, different payloads, and the number in flight."""

from __future__ import annotations

from functools import cache
from itertools import cycle, islice
from random import Random

TOPIC = "bench.x"
IN_FLIGHT = 1000
PAYLOAD_BYTES = 100
DIFFERENT = 100_000


def payloads(count: int) -> list[bytes]:
    """Payloads of 100 random bytes, so that compression helps no side. They repeat after 100,000."""
    return list(islice(cycle(_payloads()), count))


@cache
def _payloads() -> tuple[bytes, ...]:
    source = Random(1)
    return tuple(source.randbytes(PAYLOAD_BYTES) for _ in range(DIFFERENT))
