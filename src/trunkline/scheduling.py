"""Scheduling: a hub asks the kernel for short time slices, and a client that publishes a lot yields the processor.

A hub on a busy machine shares the processors with its clients. Linux lets a thread that was woken interrupt another one
at once only if its time slice is shorter; otherwise it waits for up to a tick, which is 4 ms. Since Linux 6.12 a thread
may choose its slice, without privileges and without a larger share of the processor. Older kernels ignore the choice.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
import sys
from collections.abc import Callable

log = logging.getLogger("trunkline.hub")

SLICE_NS = 100_000
"""The shortest time slice that the kernel allows."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
"""`struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period, and two clamps."""
_RUNTIME = 5
_yield: Callable[[], None] | None = getattr(os, "sched_yield", None)
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
"""The numbers of the system calls sched_setattr and sched_getattr. Few versions of the C library wrap them."""


def _attributes(libc: ctypes.CDLL, number: int) -> list[int]:
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if libc.syscall(number, 0, buffer, _ATTRIBUTES.size, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return list(_ATTRIBUTES.unpack(buffer.raw))


def time_slice_ns() -> int | None:
    """The time slice of this thread; None if it is unknown, or if the thread has another scheduling policy."""
    calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if calls is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return None
    return _attributes(ctypes.CDLL(None, use_errno=True), calls[1])[_RUNTIME]


def shorten_time_slice() -> bool:
    """Request short time slices for this thread and the threads that it starts.

    Returns whether the kernel accepted that. A scheduling policy that was chosen for this process is not changed.
    """
    calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if calls is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    change, look = calls
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        attributes = _attributes(libc, look)
        attributes[_RUNTIME] = SLICE_NS
        if libc.syscall(change, 0, _ATTRIBUTES.pack(*attributes), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return _attributes(libc, look)[_RUNTIME] == SLICE_NS
    except OSError as error:
        # A container may forbid it. The hub works without it.
        log.debug("the kernel did not shorten the time slice of the hub: %s", error)
        return False


def let_others_run() -> None:
    """Give up the processor if another thread waits for it here.

    Otherwise a process that publishes without a pause keeps the processor for its whole time slice. Messages that it
    has just sent, and urgent messages of other processes, wait that long. Does nothing on systems without this call.
    """
    if _yield is not None:
        _yield()
