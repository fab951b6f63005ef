"""Files of keys: written as a whole, and private keys are read by nobody else."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """All of it or nothing: whoever reads it meanwhile sees what was there before."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    # With the mode it is to have from the first moment on.
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
    """The path of a private key that can be used; raises PermissionError if others can read it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise PermissionError(
            errno.EPERM, f"others can read this private key (mode {mode:04o}): chmod 600 {path}", str(path)
        )
    return path
