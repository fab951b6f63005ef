"""Waiting for several descriptors at once, without polling: wake-ups of a channel, and the end of processes.

Its own descriptor is readable when one of them is: an event loop watches that.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Watch:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._processes: dict[int, int] = {}
        """Descriptors of processes, by pid."""

    def fileno(self) -> int:
        return self._epoll.fileno()

    def add(self, descriptor: int) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)

    def add_process(self, pid: int) -> bool:
        """Watch for the end of a process; False if it has ended already."""
        if pid in self._processes:
            return True
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        self._processes[pid] = descriptor
        self.add(descriptor)
        return True

    def remove_process(self, pid: int) -> None:
        descriptor = self._processes.pop(pid, None)
        if descriptor is not None:
            self._epoll.unregister(descriptor)
            os.close(descriptor)

    def ended(self) -> list[int]:
        """The processes that have ended, and are not watched any more."""
        found = []
        for pid, descriptor in list(self._processes.items()):
            if select.select([descriptor], [], [], 0)[0]:
                found.append(pid)
                self.remove_process(pid)
        return found

    def wait(self, timeout_s: float | None) -> bool:
        """Whether something is ready, at the latest after `timeout_s`. Other threads run meanwhile."""
        return bool(self._epoll.poll(timeout_s))

    def close(self, *descriptors: int) -> None:
        """Also stop watching `descriptors`, which are closed by somebody else."""
        for descriptor in descriptors:
            with suppress(OSError):
                self._epoll.unregister(descriptor)
        for pid in list(self._processes):
            self.remove_process(pid)
        self._epoll.close()
