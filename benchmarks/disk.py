"""The disk itself: how long does it take to write a small record durably?"""

from __future__ import annotations

import os
import time

from benchmarks.harness import Sample
from benchmarks.request import p50
from benchmarks.servers import directory

RECORD = bytes(200)
# Systems without fdatasync use fsync.
_sync = getattr(os, "fdatasync", os.fsync)


def settle() -> None:
    """Wait until the disk has written pending data, such as the files of the previous round."""
    os.sync()


def append_p50(count: int) -> Sample:
    """Microseconds to append a record to a file and sync it, one at a time."""
    times: list[int] = []
    with directory() as folder, (folder / "records").open("ab", buffering=0) as file:
        settle()
        for _ in range(count):
            began = time.perf_counter_ns()
            file.write(RECORD)
            _sync(file.fileno())
            times.append(time.perf_counter_ns() - began)
    return p50(times)
