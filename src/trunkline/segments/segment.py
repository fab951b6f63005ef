"""The reader's side: a segment of another process, held open and locked, and the memory in it."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from contextlib import suppress
from functools import cache

from trunkline.errors import ProtocolError

HEADER_BYTES = 64
"""The header before the payload: the token, and padding for the alignment of arrays."""
TOKEN_BYTES = 32
CODE = "memory"

if sys.platform == "linux":
    import fcntl

    SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    """A segment keeps its size: if it shrank, SIGBUS would kill its readers."""


@cache
def available() -> bool:
    """Whether this system supports segments."""
    return sys.platform == "linux" and _device() is not None


@cache
def _device() -> int | None:
    """The device number of all memfds of this kernel, except those of huge pages."""
    try:
        descriptor = os.memfd_create("trunkline")
    except (AttributeError, OSError):
        return None
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


class Segment:
    """A locked segment. Its owner does not write to it until this object and all mappings of it are gone."""

    __slots__ = ("__weakref__", "descriptor", "size", "token")

    def __init__(self, descriptor: int, size: int, token: str) -> None:
        self.descriptor = descriptor
        self.size = size
        """The size of the payload."""
        self.token = token

    @classmethod
    def open(cls, pid: int, descriptor: int, size: int, token: str) -> Segment:
        """Open and lock the segment with this descriptor of a process. Raises ProtocolError if it is not a segment.

        The token identifies the payload: the owner writes a new one with each payload.
        """
        if not available() or pid <= 0 or descriptor < 0 or size < 0:
            raise ProtocolError(CODE, "there is no such segment")
        try:
            opened = _open(f"/proc/{pid}/fd/{descriptor}", HEADER_BYTES + size)
        except (OSError, ValueError) as error:
            raise ProtocolError(CODE, f"descriptor {descriptor} of process {pid} is not a segment: {error}") from error
        segment = cls(opened, size, token)
        if os.pread(opened, TOKEN_BYTES, 0) != token.encode(errors="replace"):
            raise ProtocolError(CODE, f"descriptor {descriptor} of process {pid} is another segment")
        return segment

    def read(self) -> bytes:
        """A copy of the payload."""
        parts: list[bytes] = []
        at = HEADER_BYTES
        end = HEADER_BYTES + self.size
        while at < end:
            # Never empty: the size is sealed and was checked.
            parts.append(os.pread(self.descriptor, end - at, at))
            at += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def map(self) -> MappedSegment:
        """The payload in place. Raises OSError."""
        return MappedSegment(self.descriptor, HEADER_BYTES + self.size, mmap.MAP_SHARED, mmap.PROT_READ)

    def __del__(self) -> None:
        os.close(self.descriptor)


class MappedSegment(mmap.mmap):
    """The mapped memory of a segment. It holds the descriptor and the lock until its last view is gone.

    `view.obj` leads here.
    """

    segment: Segment | None = None
    """The segment, for code that passes the payload on."""

    @property
    def payload(self) -> memoryview:
        """The memory stays mapped as long as this object or a view of it exists."""
        return memoryview(self)[HEADER_BYTES:]


def _open(path: str, size: int) -> int:
    # Checked before it is opened: it may be a device, or a pipe, on which `open` blocks.
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode) or status.st_dev != _device():
            raise ValueError("not a memfd")
        if status.st_size < size:
            raise ValueError(f"{status.st_size:,} bytes, and {size:,} are needed")
        opened = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)
    try:
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise ValueError("not sealed")
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        with suppress(OSError):
            os.close(opened)
        raise
    return opened
