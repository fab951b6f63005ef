"""The runtime directory, where processes of one user on one machine find each other."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

from trunkline.errors import InvalidSettings

SOCKET = "hub.sock"


def runtime_directory() -> Path:
    """`$TRUNKLINE_RUNTIME`, or a directory that only this user can read. It is created if it does not exist."""
    path = _place()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        # In a shared directory, another user may have created it first.
        raise InvalidSettings(
            f"{path} belongs to another user, or others can write to it: set TRUNKLINE_RUNTIME to a private directory"
        )
    return path


def _place() -> Path:
    if named := os.environ.get("TRUNKLINE_RUNTIME"):
        return Path(named)
    if shared := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(shared) / "trunkline"
    return Path(tempfile.gettempdir()) / f"trunkline-{os.getuid()}"


def default_url() -> str:
    """The default address of a hub and its clients."""
    return f"unix://{runtime_directory() / SOCKET}"


def hub_answers() -> bool:
    """Whether a hub listens on the default socket. Never waits, and creates nothing."""
    path = _place() / SOCKET
    try:
        if path.stat().st_uid != os.getuid():
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(str(path))
    except OSError:
        return False
    return True
