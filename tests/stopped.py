"""Stops processes with SIGSTOP, and waits until they have stopped.

The signal reaches one thread of a process, which then stops the others. On a busy machine they run on for several
milliseconds, in which a server answers what it was just asked.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 60.0
POLL_S = 0.001


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    _wait([pid])


def stop_group(group: int) -> None:
    os.killpg(group, signal.SIGSTOP)
    _wait([int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if int(fields(path)[2]) == group])


def _wait(pids: list[int]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while running := [pid for pid in pids if any(state not in "TtZX" for state in states(pid))]:
        assert time.monotonic() < deadline, f"processes {running} have not stopped {DEADLINE_S:g} s after the signal"
        time.sleep(POLL_S)


def states(pid: int) -> Iterator[str]:
    """The state of each thread of a process: T is stopped, Z and X have ended."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        yield fields(thread)[0]


def fields(stat: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, group and more."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0", "0"]  # it has ended just now
