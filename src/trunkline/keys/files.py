"""Key files: written atomically. Private keys must not be readable by other users."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file atomically. Concurrent readers see the old content."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    # Created with its final mode.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def private(path: Path) -> Path:
    """The path of a private key; raises PermissionError if other users can read it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise PermissionError(
            errno.EPERM, f"other users can read this private key (mode {mode:04o}): chmod 600 {path}", str(path)
        )
    return path
