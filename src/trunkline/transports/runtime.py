"""The runtime directory: where processes of one person on one machine find each other."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from trunkline.errors import InvalidSettings


def runtime_directory() -> Path:
    """`$TRUNKLINE_RUNTIME`, or a directory that only this person can read. It is made if it is not there."""
    named = os.environ.get("TRUNKLINE_RUNTIME")
    if named:
        path = Path(named)
    elif os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(os.environ["XDG_RUNTIME_DIR"]) / "trunkline"
    else:
        path = Path(tempfile.gettempdir()) / f"trunkline-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        # In a directory for everybody, anybody may have made it first.
        raise InvalidSettings(f"{path} belongs to somebody else, or others can write to it: set TRUNKLINE_RUNTIME")
    return path


def default_url() -> str:
    """Where a hub listens, and where clients look for it, if nobody says otherwise."""
    return f"unix://{runtime_directory() / 'hub.sock'}"
