"""Descriptor files: processes of one user on one machine find channels by them, without a hub.

A producer describes its channel in a file in the runtime directory, and removes the file when it ends. A killed
producer leaves it behind, so a file is valid only while the process that wrote it lives.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from trunkline.transports.runtime import runtime_directory
from trunkline.wire.control import Config

FOLDER = "channels"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's description of its channel."""

    channel: str
    shm_name: str = ""
    schema_hash: str = ""
    schema_version: str = ""
    config: Config = Config()
    metadata: dict[str, Any] = {}
    pid: int = 0
    started: str = ""
    """The start time of the process, because its pid may be reused."""


class Descriptors:
    def __init__(self, directory: Path | None = None) -> None:
        self._given = directory

    @property
    def _folder(self) -> Path:
        return (self._given or runtime_directory()) / FOLDER

    def announce(self, descriptor: Descriptor) -> None:
        """Write the file. Raises OSError."""
        own = msgspec.structs.replace(descriptor, pid=os.getpid(), started=_started(os.getpid()))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(own.channel)
        fresh = path.with_name(f"{path.name}.{own.pid}.tmp")
        descriptor_file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor_file, "wb") as file:
            file.write(msgspec.json.encode(own))
        # Atomic, because another process may be reading.
        fresh.replace(path)

    def withdraw(self, channel: str) -> bool:
        """Remove the file of this process; False if there is none, or if it belongs to another process."""
        path = self._path(channel)
        found = _read(path)
        if found is None or found.pid != os.getpid():
            return False
        path.unlink(missing_ok=True)
        return True

    def find(self, channel: str) -> Descriptor | None:
        """The descriptor of a living producer."""
        found = self._living(self._path(channel))
        return found if found is not None and found.channel == channel else None

    def all(self) -> list[Descriptor]:
        """The descriptors of all living producers, by channel."""
        if not self._folder.is_dir():
            return []
        found = (self._living(path) for path in sorted(self._folder.glob("*.json")))
        return [descriptor for descriptor in found if descriptor is not None]

    def _living(self, path: Path) -> Descriptor | None:
        found = _read(path)
        if found is None:
            return None
        if not _lives(found):
            path.unlink(missing_ok=True)
            return None
        return found

    def _path(self, channel: str) -> Path:
        # A hash keeps names apart that differ only in characters that a file name cannot have.
        safe = _UNSAFE.sub("_", channel)[:100]
        number = "" if safe == channel else f"-{hashlib.sha256(channel.encode()).hexdigest()[:12]}"
        return self._folder / f"{safe}{number}.json"


def _read(path: Path) -> Descriptor | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Descriptor)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        # Removed in the meantime, or not readable.
        return None


def _lives(descriptor: Descriptor) -> bool:
    try:
        os.kill(descriptor.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return not descriptor.started or descriptor.started == _started(descriptor.pid)


def _started(pid: int) -> str:
    """The start time of a process as the system reports it; empty if it does not."""
    try:
        # After the name, which is in parentheses and may contain any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
