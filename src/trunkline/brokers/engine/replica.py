"""This process's copy of the directory that an engine keeps: channels and schemas, each under a key. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from trunkline.errors import InvalidPayload, ProtocolError
from trunkline.registry.records import ChannelRecord
from trunkline.registry.registry import Registry
from trunkline.registry.schemas import KeptSchema, SchemaRegistry

CHANNEL = "channel."
SCHEMA = "schema."


class DirectoryChanges(NamedTuple):
    """The changes of the directory since a version."""

    version: int
    """Increases with each change. The engine refuses a change that is based on an older version."""
    values: Mapping[str, bytes | None]
    """The values by key; None for a removed key."""
    whole: bool
    """Whether this is the whole directory, which replaces everything known before."""


class DirectoryReplica:
    def __init__(self) -> None:
        self.version = 0
        self.registry = Registry()
        self.schemas = SchemaRegistry()
        self._values: dict[str, bytes] = {}

    def apply(self, changes: DirectoryChanges) -> list[str]:
        """Apply the changes of other processes. Returns the patterns of topics whose contract may have changed.

        Raises InvalidPayload if a value cannot be read.
        """
        patterns: list[str] = []
        if changes.whole:
            patterns = [channel.pattern for channel in self.registry.select(">")]
            self._values.clear()
            self.registry, self.schemas = Registry(), SchemaRegistry()
        self.version = changes.version
        for key, value in changes.values.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
        return patterns + self._load(list(changes.values))

    def undo(self, key: str) -> None:
        """Revert a key to the stored value, because the engine did not accept the change."""
        if key.startswith(SCHEMA):
            self.schemas = SchemaRegistry()
            self._load([each for each in self._values if each.startswith(SCHEMA)])
        else:
            self._load([key])

    def written(self, key: str, value: bytes | None, version: int) -> None:
        """Record the new value and version of a key, after the engine accepted the change."""
        self.version = version
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def value(self, key: str) -> bytes | None:
        """The value to store under a key; None if the key is to be removed."""
        if key.startswith(SCHEMA):
            return msgspec.json.encode(self.schemas.kept_as(key.removeprefix(SCHEMA)))
        channel = self.registry.channel(key.removeprefix(CHANNEL))
        return None if channel is None else msgspec.json.encode(ChannelRecord.of(channel))

    def stored(self, key: str) -> bytes | None:
        """The value that is stored under a key."""
        return self._values.get(key)

    def _load(self, keys: list[str]) -> list[str]:
        patterns: list[str] = []
        # Remove old channels first: another channel may have taken over their topics.
        for key in keys:
            if key.startswith(CHANNEL) and (channel := self.registry.channel(key.removeprefix(CHANNEL))) is not None:
                patterns.append(channel.pattern)
                self.registry.unload(channel.name)
        for key in keys:
            if (value := self._values.get(key)) is None:
                continue
            try:
                if key.startswith(SCHEMA):
                    kept = msgspec.json.decode(value, type=KeptSchema)
                    self.schemas.merge(kept)
                    for version in kept.versions:
                        patterns += self.registry.with_schema(version.hash)
                else:
                    record = msgspec.json.decode(value, type=ChannelRecord)
                    self.registry.load(record)
                    patterns.append(record.pattern)
            except (msgspec.DecodeError, UnicodeDecodeError, ProtocolError) as error:
                raise InvalidPayload(f"{key} in the directory cannot be read: {error}") from error
        return patterns
