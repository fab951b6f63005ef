"""The places of the engine's files: below the runtime directory, and in /dev/shm.

File names in /dev/shm do not contain the runtime directory, so the prefix depends on it: two runtime directories share
no files.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from trunkline.errors import InvalidSettings
from trunkline.transports.runtime import runtime_directory

SHM: Final = Path("/dev/shm")
FOLDER: Final = "shm"
ENGINE_NAME: Final = re.compile(r"tl[0-9a-f]{6}_")
MAX_ROOT_CHARS: Final = 60
"""The maximum length of the root path. It contains sockets, whose paths are limited to 107 characters."""


def engine_root() -> Path:
    """The directory of the engine. Raises InvalidSettings if its path is too long."""
    root = runtime_directory().resolve() / FOLDER
    if len(str(root)) > MAX_ROOT_CHARS:
        raise InvalidSettings(
            f"{root} is too long for the sockets in it: set TRUNKLINE_RUNTIME to a directory of at most "
            f"{MAX_ROOT_CHARS - len(FOLDER) - 1} characters"
        )
    root.mkdir(mode=0o700, exist_ok=True)
    return root


def belongs_elsewhere(name: str) -> bool:
    """Whether a name in /dev/shm belongs to the engine in another runtime directory."""
    return ENGINE_NAME.match(name) is not None and not name.startswith(
        engine_prefix(runtime_directory().resolve() / FOLDER)
    )


def engine_prefix(root: Path) -> str:
    """The prefix of all the engine's files below this root, and in /dev/shm."""
    return f"tl{sha256(str(root).encode()).hexdigest()[:6]}_"
