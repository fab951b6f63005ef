"""One writer at a time: a lock that the system releases when its owner dies. The file has the owner's pid and hub."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from trunkline.journal.errors import JournalLocked, JournalUnusable

try:
    import fcntl
except ImportError:  # pragma: no cover  # missing on Windows
    fcntl = None  # type: ignore[assignment]  # checked before use

FILE = "journal.lock"
TRIES = 5
PAUSE_S = 0.02


class Lock:
    def __init__(self, directory: Path, name: str = FILE, locked: Callable[..., Exception] = JournalLocked) -> None:
        self._directory = directory
        self._name = name
        self._locked = locked
        self._descriptor: int | None = None

    def take(self) -> None:
        """Lock the directory; raises JournalLocked, or the given error, with the owner's pid."""
        path = self._directory / self._name
        if fcntl is None:
            raise JournalUnusable(str(self._directory), "a journal needs the file locks of a POSIX system")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalUnusable(str(self._directory), f"{error.strerror}: {path}") from error
        # A process that only asks for the owner holds the lock for a moment, so it is tried again.
        for _ in range(TRIES):
            if _is_free(descriptor):
                break
            threading.Event().wait(PAUSE_S)
        else:
            pid, hub = _read(descriptor)
            os.close(descriptor)
            raise self._locked(str(self._directory), pid, *filter(None, [hub])) from None
        self._descriptor = descriptor
        self.name_owner()

    def name_owner(self, hub: str = "") -> None:
        """Write the owner of the lock: this process, and the address of its hub."""
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n{hub}\n".encode(), 0)
        except OSError:
            # The disk is full: the lock is held, but its owner is not named.
            pass

    def release(self) -> None:
        if self._descriptor is not None:
            # Emptied, not removed: after a removal, two processes could lock two files of the same name.
            try:
                os.ftruncate(self._descriptor, 0)
            finally:
                os.close(self._descriptor)
                self._descriptor = None


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> tuple[int | None, str]:
    """The pid of the owner, if it is known, and the address of its hub, if it is one."""
    pid, _, hub = os.pread(descriptor, 1024, 0).decode(errors="replace").partition("\n")
    return int(pid) if pid.isdigit() else None, hub.strip()


def owner(directory: Path) -> int | None:
    """The pid of the process that writes to the journal; 0 if it is not known, None if there is none."""
    try:
        descriptor = os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor)[0] or 0
    finally:
        os.close(descriptor)
    return None
