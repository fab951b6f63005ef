"""Does the memory of a hub stay bounded when a consumer takes nothing and a publisher continues to publish?

The highest memory use in the first third is the baseline. The result is by how much later use exceeds it. The size of
the case is its duration in tenths of a second. Each measurement has a new hub and new workers: memory allocated before
would hide growth. With the default policy, the publisher has to wait. With a consumer that drops messages, the
publisher continues at full speed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from benchmarks import hubs
from benchmarks.harness import Case, Sample
from benchmarks.hubs import hub_on, named
from benchmarks.processes import crew
from trunkline import Overflow

LENGTH = 600
SAMPLES = 60
LIMIT_MIB = 2.0
LEAST_MIB = 0.01
PATIENCE_S = 1000.0
"""With the default heartbeat, the hub would disconnect a frozen client after a quarter of the time."""


def growth(length: int, transport: str, *, frozen: bool, overflow: Overflow) -> Sample:
    """The growth in MiB, at least LEAST_MIB."""
    began = time.perf_counter()
    samples: list[int] = []
    server = hub_on(transport, heartbeat_s=PATIENCE_S) if frozen else hub_on(transport)
    with server.running() as hub, crew(2).running() as (consumer, publisher):
        consumer.begin(hubs.hold, hub.address, overflow)
        consumer.ready()
        if frozen:
            consumer.signal(signal.SIGSTOP)
        publisher.begin(hubs.flood, hub.address)
        publisher.ready()
        for _ in range(SAMPLES):
            time.sleep(length / 10 / SAMPLES)
            samples.append(resident_bytes(hub.pid))
    grown = max(samples) - max(samples[: SAMPLES // 3])
    return Sample(max(grown / 2**20, LEAST_MIB), time.perf_counter() - began)


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    statm = Path(f"/proc/{pid}/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) * 1024


def _case(name: str, who: str, transport: str, *, frozen: bool, overflow: Overflow = Overflow.BLOCK) -> Case:
    return Case(
        name=named(name, transport),
        question=f"growth of a hub from 20 s to 60 s, {transport}, with a consumer that {who}",
        unit="MiB",
        better="less",
        ours=partial(growth, transport=transport, frozen=frozen, overflow=overflow),
        limit=LIMIT_MIB,
        size=LENGTH,
        fixed=True,
        rounds=1,
        round_s=62.0,
    )


case = partial(_case, "hub-memory", "takes nothing", frozen=False)
frozen = partial(_case, "hub-memory-frozen", "is a frozen process", frozen=True)
dropping = partial(
    _case, "hub-memory-dropping", "is a frozen process and drops", frozen=True, overflow=Overflow.DROP_OLDEST
)
