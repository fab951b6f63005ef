"""The configuration of a hub: from the command line, and from the `[hub]` table of a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.hub.access import Access, AccessRule
from trunkline.hub.settings import HubSettings, Limits
from trunkline.journal.settings import JournalSettings, Retention, Sync
from trunkline.settings import Group, build
from trunkline.transports.runtime import default_url


class JournalConfig(Group, frozen=True, kw_only=True):
    """The hub's journal: which topics are durable, which are only recorded, and for how long."""

    directory: str
    durable: tuple[str, ...] = (">",)
    recorded: tuple[str, ...] = ()
    sync: Sync = Sync.DISK
    retention: tuple[Retention, ...] = ()

    def settings(self) -> JournalSettings:
        return JournalSettings(durable=self.durable, recorded=self.recorded, sync=self.sync, retention=self.retention)


class HubConfig(Group, frozen=True, kw_only=True):
    """The configuration of `trunkline up`."""

    listen: tuple[str, ...] = ()
    """One or more URLs. By default a socket in the runtime directory."""
    keys: str | None = None
    """The directory of keys: with it, TCP is TLS with client certificates, and ZeroMQ uses CURVE."""
    insecure: bool = False
    """Listen on other addresses than loopback without keys. The environment must allow it, too."""
    heartbeat_s: float = 5.0
    window: int = 10_000
    max_clients: int = 10_000
    max_frame_bytes: int = 64 * 1024 * 1024
    shared_memory: bool = True
    limits: Limits = Limits()
    journal: JournalConfig | None = None
    rules: tuple[AccessRule, ...] = ()

    def addresses(self) -> tuple[str, ...]:
        return self.listen or (default_url(),)

    def settings(self) -> HubSettings:
        return HubSettings(
            heartbeat_s=self.heartbeat_s,
            window=self.window,
            max_clients=self.max_clients,
            max_frame_bytes=self.max_frame_bytes,
            shared_memory=self.shared_memory,
            limits=self.limits,
        )

    def access(self) -> Access:
        return Access(self.rules)

    @classmethod
    def load(cls, path: str | Path | None, **changes: Any) -> HubConfig:
        """Read the file. Values of the command line take precedence. Raises InvalidSettings."""
        values: dict[str, Any] = {}
        if path is not None:
            try:
                with Path(path).open("rb") as file:
                    values = tomllib.load(file).get("hub", {})
            except OSError as error:
                raise InvalidSettings(f"cannot read {path}: {error.strerror}") from error
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise InvalidSettings(f"{path} is not TOML: {error}") from error
        for name, value in changes.items():
            if value is not None and value != ():
                values[name] = value
        try:
            return build(cls, values)
        except msgspec.ValidationError as error:
            raise InvalidSettings(f"bad settings: {error}") from error
