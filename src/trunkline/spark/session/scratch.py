"""A folder for the temporary files of one process. The next process removes the folders of killed ones."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover  # missing on Windows
    fcntl = None  # type: ignore[assignment]  # checked before use

PREFIX = "trunkline-spark-"
OWNER = "owner.lock"


class Scratch:
    """A folder in which its owner holds a lock.

    Process ids cannot identify the owner, because containers that share a folder have separate process ids.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        fresh = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._descriptor = os.open(fresh / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _is_free(self._descriptor)
        # Renamed only when it is locked, so that it is never seen without an owner.
        self.path = fresh.rename(fresh.with_name(fresh.name.removeprefix(".")))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _sweep(parent: Path) -> None:
    if fcntl is None:
        return
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it belongs to another user, or another process removes it, too
            descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _is_free(descriptor):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Whether a folder had no owner. If so, this process owns it now."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
