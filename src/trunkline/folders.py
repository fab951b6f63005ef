"""Private directories, and an exclusive lock on one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl as _fcntl

    fcntl: Any = _fcntl
except ImportError:  # pragma: no cover  # missing on Windows
    fcntl = None


def make_folder(path: Path) -> None:
    """A directory of mode 0700. An existing one must not be writable by other users."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raises PermissionError if other users can write to it."""
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(errno.EPERM, f"other users can write to it: chmod 700 {path}", str(path))


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on the directory.

    Use it only in private directories: others could hold the lock for ever.
    """
    if fcntl is None or folder.stat().st_uid != os.getuid():
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
