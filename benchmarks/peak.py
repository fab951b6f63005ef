"""The peak memory of a piece of work in this process."""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.hub_memory import resident_bytes

LEAST_MIB = 0.01


class Cost(NamedTuple):
    step: str
    mib: float
    took_s: float


class Peak:
    """Measures the peak memory of this process from now on, relative to its current memory. `cost` returns it."""

    def __init__(self, step: str) -> None:
        import pyarrow.parquet  # noqa: F401  # not part of the measurement

        gc.collect()
        self._step = step
        if sys.platform == "linux":
            # This resets VmHWM, the peak, to the current value.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._idle = resident_bytes(os.getpid())
        self._began = time.perf_counter()

    def cost(self) -> Cost:
        took_s = time.perf_counter() - self._began
        return Cost(self._step, max((_peak_bytes() - self._idle) / 2**20, LEAST_MIB), took_s)


def _peak_bytes() -> int:
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    # The peak since the start of the process, which has done nothing else.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
