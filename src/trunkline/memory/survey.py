"""Lists what is in shared memory, its owners, and leftovers of dead processes. Reads files, without the engine.

A file is a leftover only if no process that may use it is alive. In doubt, a process counts as alive: a node lives
while it holds the lock on its monitor file, or while its process exists. The engine writes the pid into every id.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from trunkline.clock import World
from trunkline.errors import UsageError
from trunkline.memory.place import SHM, engine_prefix, engine_root

MONITOR: Final = ".node_monitor"
PERMANENT: Final = ".global_mgmt"
"""A file of 16 bytes that the engine creates once and never removes."""
STARTING_S: Final = 5.0
"""For this long after its start, a process may use a channel without being listed in it."""
_NODE_FILE: Final = re.compile(r"(\d+)\.node_monitor\w*$")
_NUMBERS: Final = re.compile(r"(?<![0-9a-z])\d{15,}(?![0-9a-z])")
"""Ids are delimited: the hashes in the names contain runs of digits, too."""
_SERVICE: Final = re.compile(r"([0-9a-f]{40})\.service(?:_tag)?$")


class EngineNode(msgspec.Struct, frozen=True, kw_only=True):
    """A producer or consumer, or its leftovers."""

    id: str
    pid: int
    program: str
    alive: bool
    age_s: float
    channels: list[str]


class EngineService(msgspec.Struct, frozen=True, kw_only=True):
    """One of the services that a channel is made of."""

    name: str
    kind: str
    owners: list[int]
    """The living processes that use it."""
    age_s: float


class EngineFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the engine, in /dev/shm or below its root path."""

    path: str
    kind: str
    """data, connection, event, dynamic, service, node, …"""
    channel: str
    owner: int
    """The process that created it; 0 if that is not known."""
    bytes: int
    age_s: float
    left_over: bool
    """Whether no process that may use it is alive."""


class MemorySurvey(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    nodes: list[EngineNode]
    services: list[EngineService]
    files: list[EngineFile]

    @property
    def left_over(self) -> list[EngineFile]:
        return [each for each in self.files if each.left_over]


def survey(world: World | None = None) -> MemorySurvey:
    """List everything. Raises UsageError in a process with an open channel: opening the files would drop its locks."""
    adapter = sys.modules.get("trunkline.memory.adapter")
    if adapter is not None and adapter.has_ports():
        raise UsageError("this process has a shared-memory channel open: run `trunkline doctor` in another one")
    return _Surveyor(engine_root(), (world or World()).time_ns() / 1e9).look()


class _Surveyor:
    def __init__(self, root: Path, now_s: float) -> None:
        self._root = root
        self._prefix = engine_prefix(root)
        self._now_s = now_s
        self._nodes_folder = root / "nodes"
        self._services_folder = root / "services"
        self._names: dict[str, str] = {}
        """The names of services, by hash."""
        self._kinds: dict[str, str] = {}
        self._hashes: dict[str, str] = {}
        """The hashes of services, by the number in the name of their file in /dev/shm."""
        self._living: set[str] = set()
        """The ids of living nodes."""
        self._users: dict[str, set[int]] = {}
        """Living processes by the hash of a service, and by the id of a port."""
        self._starting = False

    def look(self) -> MemorySurvey:
        self._read_services()
        nodes = [self._node(id) for id in self._node_ids()]
        self._living = {each.id for each in nodes if each.alive}
        self._starting = any(each.alive and each.age_s < STARTING_S for each in nodes)
        for each in nodes:
            if each.alive:
                for name in self._tags(each.id):
                    self._users.setdefault(name, set()).add(each.pid)
        services = [
            EngineService(
                name=name,
                kind=self._kinds[hash],
                owners=sorted(self._users.get(hash, ())),
                age_s=self._age(self._services_folder / f"{self._prefix}{hash}.service"),
            )
            for hash, name in sorted(self._names.items(), key=lambda item: item[1])
        ]
        files = [self._file(path) for path in self._paths() if not path.name.endswith(PERMANENT)]
        return MemorySurvey(root=str(self._root), nodes=nodes, services=services, files=files)

    def _paths(self) -> Iterator[Path]:
        yield from sorted(SHM.glob(f"{self._prefix}*"))
        yield from sorted(path for path in self._root.rglob("*") if not path.is_dir())

    # Nodes

    def _node_ids(self) -> list[str]:
        files = (_NODE_FILE.search(path.name) for path in _listed(self._nodes_folder))
        folders = (path.name for path in _listed(self._nodes_folder) if path.name.isdigit())
        return sorted({*(found[1] for found in files if found), *folders})

    def _node(self, id: str) -> EngineNode:
        monitor = self._nodes_folder / f"{self._prefix}{id}{MONITOR}"
        details = _toml(self._nodes_folder / id / f"{self._prefix}node.details")
        pid, age_s = _pid(id), self._age(monitor)
        return EngineNode(
            id=id,
            pid=pid,
            program=str(details.get("executable", "")),
            alive=_locked(monitor) or _lives(pid, self._now_s - age_s),
            age_s=age_s,
            channels=sorted({self._names[tag] for tag in self._tags(id) if tag in self._names}),
        )

    def _tags(self, id: str) -> list[str]:
        """The services and ports that a node has registered."""
        found = []
        for path in _listed(self._nodes_folder / id):
            if path.suffix == ".service_tag":
                found += _SERVICE.findall(path.name)
            elif path.suffix == ".port_tag":
                found += _NUMBERS.findall(path.name)
        return found

    # Services

    def _read_services(self) -> None:
        for path in _listed(self._services_folder):
            match, about = _SERVICE.search(path.name), _toml(path)
            if match is None:
                continue
            self._names[match[1]] = str(about.get("service_name", "unreadable"))
            self._kinds[match[1]] = next(iter(about.get("messaging_pattern", {})), "unknown")
            number = about.get("unique_service_id", {})
            if number:
                self._hashes[str(number["unique_value"] << 64 | number["payload_value"])] = match[1]

    # Files

    def _file(self, path: Path) -> EngineFile:
        try:
            status = path.lstat()
        except FileNotFoundError:
            size, age_s = 0, 0.0
        else:
            size, age_s = status.st_size, self._now_s - status.st_mtime
        base = SHM if path.parent == SHM else self._root
        ids = _NUMBERS.findall(str(path.relative_to(base)))
        hash = next(iter(_SERVICE.findall(path.name)), "") or next(
            (self._hashes[each] for each in ids if each in self._hashes), ""
        )
        ids = ids or [number for number, known in self._hashes.items() if known == hash]
        return EngineFile(
            path=str(path),
            kind=_kind(path),
            channel=self._names.get(hash, ""),
            owner=_pid(ids[0]) if ids else 0,
            bytes=size,
            age_s=age_s,
            left_over=not self._used(path, hash, ids, age_s),
        )

    def _used(self, path: Path, hash: str, ids: list[str], age_s: float) -> bool:
        if path.parent == self._nodes_folder or path.parent.parent == self._nodes_folder:
            # It belongs to a node, whose id is in the name of the file or of the folder.
            return ids[0] in self._living if ids else True
        if hash or path.suffix in (".service", ".dynamic"):
            # A process that is starting may use a service without being listed.
            return bool(self._users.get(hash)) or self._starting or any(self._made_by_living(ids, age_s))
        return any(self._users.get(id) for id in ids) or any(self._made_by_living(ids, age_s)) or not ids

    def _made_by_living(self, ids: list[str], age_s: float) -> Iterator[bool]:
        return (_lives(_pid(id), self._now_s - age_s) for id in ids)

    def _age(self, path: Path) -> float:
        try:
            return self._now_s - path.stat().st_mtime
        except OSError:
            return 0.0


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError):
        # Removed in the meantime, or half written by a killed process.
        return {}


def _kind(path: Path) -> str:
    if MONITOR in path.name or path.suffix in (".details", ".service_tag", ".port_tag"):
        return "node"
    return path.suffix.removeprefix(".") or "unknown"


def _pid(id: str) -> int:
    """The process that created a node, a port or a service. The engine's ids contain it."""
    return int(id) >> 64 & 0xFFFFFFFF


def _locked(path: Path) -> bool:
    """Whether another process holds the lock. The test does not take the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        question = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
        return bool(struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def _lives(pid: int, since_s: float) -> bool:
    """Whether the process exists and existed at that time: the pid may have been reused."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return False
    # A zombie has released everything.
    return fields[0] != "Z" and int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK") <= since_s + 2
