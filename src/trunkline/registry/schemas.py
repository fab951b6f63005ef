"""The schema registry: JSON Schemas by name and semantic version, and by hash. Pure, and bounded.

A schema with the same meaning as a registered one (the same hash, see schema/canonical.py) is not registered again: the
existing version is returned, even if descriptions differ. Any other schema is compared with the last version of its
name (see compatibility.py):

    mode                       backward    forward     full        none
    what must be readable      old by new  new by old  both        -
    a change that breaks it    refused     refused     refused     a new major version
    any other change           minor       minor       minor       minor, if new reads old

A version that the caller chooses must be higher than the last, and a breaking change needs a new major version.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self

import msgspec

from trunkline.errors import InvalidTopic, ProtocolError, UsageError
from trunkline.registry.compatibility import Break, Side, breaks
from trunkline.schema import Checker, Problem, hash_of
from trunkline.schema.library import require
from trunkline.schema.nodes import short
from trunkline.topic import validate_topic
from trunkline.wire.control import SchemaInfo

log = logging.getLogger("trunkline.hub")

NONE: Final = "none"
BACKWARD: Final = "backward"
FORWARD: Final = "forward"
FULL: Final = "full"
MODES: Final = (NONE, BACKWARD, FORWARD, FULL)
TOLD: Final = 3
"""The number of breaks that an error names."""
NEW: Final = "the new version"
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)


class Version(NamedTuple):
    major: int
    minor: int
    patch: int

    @classmethod
    def read(cls, text: str) -> Self:
        found = _VERSION.fullmatch(text)
        if found is None:
            raise ProtocolError(
                "invalid_version", f"{short(text)} is not a version: write three numbers, such as 1.0.0"
            )
        return cls(*map(int, found.groups()))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def after(self, *, breaking: bool) -> Version:
        return Version(self.major + 1, 0, 0) if breaking else Version(self.major, self.minor + 1, 0)


FIRST: Final = Version(1, 0, 0)


class KeptSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A name, and all versions that are registered under it."""

    name: str
    compatibility: str
    versions: list[KeptVersion]
    """In ascending order."""


class KeptVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    hash: str
    schema: dict[str, Any]


Keep = Callable[[list[KeptSchema]], None]
"""Called with the new state of all schemas before anything changes. If it raises, nothing is changed."""


class SchemaLimits(NamedTuple):
    schemas: int = 10_000
    """The maximum number of versions of all names together."""
    schema_bytes: int = 256 * 1024
    """The maximum size of one schema as JSON."""
    total_bytes: int = 64 * 1024 * 1024


class SchemaRegistry:
    def __init__(self, limits: SchemaLimits = SchemaLimits()) -> None:
        self._limits = limits
        self._names: dict[str, dict[Version, SchemaInfo]] = {}
        """The versions of each name, in ascending order."""
        self._modes: dict[str, str] = {}
        self._hashes: dict[str, SchemaInfo] = {}
        self._checkers: dict[str, Checker] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def __contains__(self, hash: object) -> bool:
        return hash in self._hashes

    def put(
        self, name: str, schema: dict[str, Any], version: str = "", compatibility: str = "", keep: Keep | None = None
    ) -> SchemaInfo:
        """Register a schema. The result has its version and hash. Raises ProtocolError, and then changes nothing."""
        try:
            validate_topic(name)
        except InvalidTopic as error:
            raise ProtocolError("invalid_topic", f"the name of a schema must be a valid topic: {error}") from error
        mode = compatibility or self._modes.get(name, BACKWARD)
        if mode not in MODES:
            raise ProtocolError("malformed", f"compatibility is one of {', '.join(MODES)}, not {short(mode)}")
        size, hash = self._measured(schema)
        known = self._names.get(name, {})
        asked = Version.read(version) if version else None
        for had, info in known.items():
            if info.hash == hash:
                if asked not in (None, had):
                    raise ProtocolError(
                        "invalid_version", f"{name} {had} is the same schema: it cannot also be {version}"
                    )
                if keep is not None and mode != self._modes[name]:
                    keep(self._kept_with(name, mode))
                self._modes[name] = mode
                return self._describe(info)
        given = self._next(name, schema, mode, asked)
        self._make_room(size)
        info = SchemaInfo(name=name, version=str(given), hash=hash, compatibility=mode, schema=schema)
        if keep is not None:
            keep(self._kept_with(name, mode, info))
        self._modes[name] = mode
        self._add(given, info, size)
        return self._describe(info)

    def _add(self, version: Version, info: SchemaInfo, size: int) -> None:
        self._names.setdefault(info.name, {})[version] = info
        self._hashes.setdefault(info.hash, info)
        self._bytes += size

    def _measured(self, schema: dict[str, Any]) -> tuple[int, str]:
        size = len(msgspec.json.encode(schema))
        if size > self._limits.schema_bytes:
            raise ProtocolError(
                "too_large", f"the schema has {size:,} bytes, and may have {self._limits.schema_bytes:,}"
            )
        try:
            Checker(schema)
            return size, hash_of(schema)
        except UsageError as error:
            raise ProtocolError("invalid_schema", str(error)) from error

    def _next(self, name: str, schema: dict[str, Any], mode: str, asked: Version | None) -> Version:
        """The version of a schema that is new under its name."""
        known = self._names.get(name)
        if not known:
            return asked or FIRST
        last = list(known)[-1]
        try:
            found = compare(known[last].schema, schema, str(last), mode if mode != NONE else BACKWARD)
        except UsageError as error:
            if mode != NONE:
                raise ProtocolError("invalid_schema", str(error)) from error
            found = [Break("$", str(error))]
        if found and mode != NONE:
            raise ProtocolError("incompatible", f"{name} is not {mode} compatible with {last}: {_listed(found)}")
        if asked is None:
            return last.after(breaking=bool(found))
        if asked <= last:
            raise ProtocolError(
                "invalid_version", f"{name} is at {last}: the next version must be above it, not {asked}"
            )
        if found and asked.major == last.major:
            least = last.after(breaking=True)
            raise ProtocolError("invalid_version", f"{name} {asked} must be at least {least}: {_listed(found)}")
        return asked

    def _make_room(self, size: int) -> None:
        if len(self) >= self._limits.schemas:
            raise ProtocolError("too_many", f"there are already {self._limits.schemas} schemas, which is the limit")
        if self._bytes + size > self._limits.total_bytes:
            raise ProtocolError("too_many", f"all schemas together may have {self._limits.total_bytes:,} bytes")

    # Keeping

    def kept(self) -> list[KeptSchema]:
        """All schemas, in the form that `restore` takes."""
        return [_kept(name, self._modes[name], known.values()) for name, known in self._names.items()]

    def kept_as(self, name: str) -> KeptSchema:
        """The versions that are registered under a name."""
        return _kept(name, self._modes[name], self._names[name].values())

    def _kept_with(self, name: str, mode: str, *more: SchemaInfo) -> list[KeptSchema]:
        """All schemas after a change: a name with another mode, and possibly a new version."""
        others = [each for each in self.kept() if each.name != name]
        return [*others, _kept(name, mode, (*self._names.get(name, {}).values(), *more))]

    def restore(self, kept: Iterable[KeptSchema]) -> None:
        """Load the schemas of an earlier run, before any client connects. They were checked when they were registered.

        Raises ProtocolError for invalid records, and MissingExtra if payloads cannot be checked here.
        """
        for each in kept:
            if each.name in self._names:
                raise ProtocolError("malformed", f"{each.name} exists twice")
            self.merge(each)

    def merge(self, each: KeptSchema) -> None:
        """Merge the versions that another process has registered under a name. Raises as `restore`."""
        require()
        versions = [Version.read(one.version) for one in each.versions]
        if each.compatibility not in MODES or versions != sorted(set(versions)):
            raise ProtocolError("malformed", f"the versions of {each.name} are not in order, or its mode is unknown")
        self._modes[each.name] = each.compatibility
        known = self._names.get(each.name, {})
        for version, one in zip(versions, each.versions, strict=True):
            if version not in known:
                info = SchemaInfo(
                    name=each.name,
                    version=one.version,
                    hash=one.hash,
                    compatibility=each.compatibility,
                    schema=one.schema,
                )
                self._add(version, info, len(msgspec.json.encode(one.schema)))

    # Finding

    def get(self, name: str = "", version: str = "", hash: str = "") -> SchemaInfo:
        """A schema by its hash, or by its name and version (the last one by default). Raises ProtocolError."""
        if hash:
            info = self._hashes.get(hash)
            if info is None:
                raise ProtocolError("unknown_schema", f"no schema has the hash {short(hash, 80)}")
            return self._describe(info, whole=True)
        known = self._names.get(name)
        if not known:
            raise ProtocolError("unknown_schema", f"there is no schema named {short(name)}")
        wanted = Version.read(version) if version else list(known)[-1]
        if wanted not in known:
            raise ProtocolError(
                "unknown_schema", f"there is no version {wanted} of {name}, the last is {list(known)[-1]}"
            )
        return self._describe(known[wanted], whole=True)

    def overview(self, name: str = "") -> list[SchemaInfo]:
        """All versions of a name, or the last version of each name; without the schemas themselves."""
        if name:
            return [self._describe(info) for info in self._names.get(name, {}).values()]
        return [self._describe(list(known.values())[-1]) for _, known in sorted(self._names.items())]

    def checker(self, hash: str) -> Checker | None:
        """The checker of payloads; None if no schema has this hash."""
        checker = self._checkers.get(hash)
        if checker is None and (info := self._hashes.get(hash)) is not None:
            try:
                checker = Checker(info.schema)
            except UsageError as error:
                # A hub with other rules stored it. Unchecked payloads are not accepted: the owner must replace the
                # schema.
                log.error("the schema %s %s cannot be used, register another one: %s", info.name, info.version, error)
                checker = _Unusable(f"the hub cannot use the schema of this channel: {error}")
            self._checkers[hash] = checker
        return checker

    def _describe(self, info: SchemaInfo, *, whole: bool = False) -> SchemaInfo:
        mode = self._modes[info.name]
        return SchemaInfo(
            name=info.name,
            version=info.version,
            hash=info.hash,
            compatibility=mode,
            schema=info.schema if whole else {},
        )


class _Unusable(Checker):
    """A checker for a schema that cannot be used. It rejects every payload."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __call__(self, value: Any, size: int = 0) -> Problem | None:
        return "$", self._why


def _kept(name: str, mode: str, versions: Iterable[SchemaInfo]) -> KeptSchema:
    return KeptSchema(
        name=name,
        compatibility=mode,
        versions=[KeptVersion(version=info.version, hash=info.hash, schema=info.schema) for info in versions],
    )


def compare(old: dict[str, Any], new: dict[str, Any], last: str, mode: str) -> list[Break]:
    """What a change breaks, according to a mode."""
    before, after = Side(old, last), Side(new, NEW)
    found: list[Break] = []
    if mode in (BACKWARD, FULL):
        found += breaks(writer=before, reader=after)
    if mode in (FORWARD, FULL):
        found += breaks(writer=after, reader=before)
    return found


def _listed(found: list[Break]) -> str:
    more = f"; and {len(found) - TOLD} more" if len(found) > TOLD else ""
    return "; ".join(map(str, found[:TOLD])) + more
