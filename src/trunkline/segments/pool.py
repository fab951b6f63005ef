"""The writer's side: segments of this process, reused when no process reads them."""

from __future__ import annotations

import mmap
import os
import sys

from trunkline.segments.segment import HEADER_BYTES, TOKEN_BYTES, available

if sys.platform == "linux":
    import fcntl

    from trunkline.segments.segment import SEALS

MAX_SEGMENTS = 64
"""Each needs two file descriptors, and the usual limit of a process is 1,024."""
MIN_STEP = 64 * 1024


class Lease:
    """A payload in a segment. The segment is not reused while the lease exists or a process reads it."""

    __slots__ = ("_slot", "size", "token")

    def __init__(self, slot: _Slot, size: int, token: str) -> None:
        self._slot = slot
        self.size = size
        self.token = token

    @property
    def descriptor(self) -> int:
        return self._slot.descriptor

    def __del__(self) -> None:
        self._slot.leased = False


class _Slot:
    """One segment."""

    __slots__ = ("capacity", "descriptor", "leased", "memory", "written")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.leased = False
        self.written = 0
        """The largest size that was written so far. Only that part of a memfd takes memory."""
        self.memory: memoryview | None = None
        self.descriptor = os.memfd_create("trunkline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, capacity)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)

    def is_free(self) -> bool:
        if self.leased:
            return False
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        # Only a test: a free segment is given out by its owner alone.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return True

    def write(self, header: bytes, payload: bytes) -> None:
        """Write a payload. Raises OSError if there is not enough memory."""
        end = len(header) + len(payload)
        if end > self.written:
            # By a system call that can fail. Writing to memory that cannot be allocated would kill the process.
            if os.pwritev(self.descriptor, [header, payload], 0) != end:
                raise OSError("the segment could not be written")
            self.written = end
            self.memory = memoryview(mmap.mmap(self.descriptor, self.capacity))
            return
        assert self.memory is not None
        # This takes a quarter of the time of the system call.
        self.memory[: len(header)] = header
        self.memory[len(header) : end] = payload

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def probe(secret: str) -> Lease | None:
    """An empty payload, with which others test whether they can open segments; None if there are no segments here."""
    return SegmentPool(MIN_STEP, secret).put(b"")


class SegmentPool:
    """Up to `max_bytes` of segments. If no segment is free, the caller sends the payload in another way.

    Sizes are rounded up in steps of an eighth. With powers of two, a payload of 8 MiB and its header would use 16 MiB
    of the pool.
    """

    def __init__(self, max_bytes: int, secret: str) -> None:
        self._max_bytes = max_bytes
        self._secret = secret[: TOKEN_BYTES // 2].rjust(TOKEN_BYTES // 2, "0")
        self._slots: list[_Slot] = []
        """The segment written last is at the end, and reused first: it is still in the processor's cache."""
        self._count = 0
        self._process = os.getpid()

    @property
    def size(self) -> int:
        return sum(slot.capacity for slot in self._slots)

    def put(self, payload: bytes) -> Lease | None:
        """Write a payload where others can read it; None if there is no room, or no memory."""
        if not available() or os.getpid() != self._process:
            # After a fork the segments still belong to the parent.
            return None
        try:
            slot = self._take(HEADER_BYTES + len(payload))
            if slot is None:
                return None
            self._count += 1
            token = f"{self._secret}{self._count:0{TOKEN_BYTES // 2}x}"
            slot.write(token.encode().ljust(HEADER_BYTES, b"\0"), payload)
        except OSError:
            return None
        slot.leased = True
        self._slots.append(slot)
        return Lease(slot, len(payload), token)

    def _take(self, size: int) -> _Slot | None:
        fitting = [slot for slot in self._slots if size <= slot.capacity <= 2 * size + MIN_STEP]
        for slot in reversed(fitting):
            if slot.is_free():
                self._slots.remove(slot)
                return slot
        capacity = _rounded(size)
        if capacity > self._max_bytes:
            return None
        spare = self._max_bytes - self.size
        if capacity > spare or len(self._slots) >= MAX_SEGMENTS:
            self._drop(capacity - spare)
            if capacity > self._max_bytes - self.size or len(self._slots) >= MAX_SEGMENTS:
                return None
        return _Slot(capacity)

    def _drop(self, size: int) -> None:
        """Remove free segments of other sizes, the least recently used first."""
        for slot in list(self._slots):
            if slot.is_free():
                self._slots.remove(slot)
                size -= slot.capacity
                if size <= 0 and len(self._slots) < MAX_SEGMENTS:
                    return

    def close(self) -> None:
        """Close the pool. Segments that other processes have open stay valid for them."""
        self._slots.clear()


def _rounded(size: int) -> int:
    step = max(MIN_STEP, 1 << (size.bit_length() - 4))
    return -(-size // step) * step
