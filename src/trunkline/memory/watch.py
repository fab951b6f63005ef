"""Waits for several descriptors without polling: wake-ups of a channel, and the end of processes.

The descriptor of a Watch is readable when one of these is. An event loop watches it.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import Final

MAX_READY: Final = 8
RECHECK_S: Final = 0.25
"""The longest wait without a new check, because the engine sometimes loses a wake-up.

Seen under load: its listener reports a notification, but its socket is empty, and no notifier writes to it again.
"""


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

    def wait(self, timeout_s: float | None) -> set[int]:
        """The descriptors that are ready, at the latest after `timeout_s`. Other threads run meanwhile."""
        # A small maximum: by default, `poll` allocates room for 1,023 events. Remaining events are returned by the next
        # call.
        return {descriptor for descriptor, _ in self._epoll.poll(timeout_s, MAX_READY)}

    def ended(self, ready: set[int]) -> list[int]:
        """The processes among the ready ones that have ended. They are no longer watched."""
        found = [pid for pid, descriptor in self._processes.items() if descriptor in ready]
        for pid in found:
            self.remove_process(pid)
        return found

    def close(self, *descriptors: int) -> None:
        """Also stop watching `descriptors`, which their owner closes."""
        for descriptor in descriptors:
            with suppress(OSError):
                self._epoll.unregister(descriptor)
        for pid in list(self._processes):
            self.remove_process(pid)
        self._epoll.close()
