"""The settings of a client for an engine: a NATS or a Redis server."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.settings import Group, build
from trunkline.topic import validate_pattern


class EngineSettings(Group, frozen=True, kw_only=True):
    """`namespace` keeps the subjects, streams and keys of this bus apart from those of others on the same server.

    Topics that match `durable` are stored by the engine before their publish returns. A durable subscription or a group
    adds its pattern to `durable`. `connect_s` is how long calls wait for a server that does not answer.
    """

    namespace: str = "tl"
    durable: tuple[str, ...] = ()
    replicas: int = 1
    """The number of servers of a cluster that keep a copy of stored messages."""
    max_age_s: float | None = None
    """How long the engine keeps stored messages. None: for ever."""
    max_bytes: int | None = None
    """The largest size of the store. The oldest messages are removed first."""
    synced: bool = False
    """Whether the server is known to sync to disk before it acknowledges. If so, no warning is logged."""
    lease_s: float = 30.0
    """How long after a member has died the engine gives its entries to others."""
    connect_s: float = 5.0
    backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    max_unsent_bytes: int = 64 * 1024 * 1024
    """How many bytes may wait while there is no connection."""
    max_inbox_bytes: int = 64 * 1024 * 1024
    """How many bytes may wait in one subscriber's inbox. A single larger message is still accepted."""
    answer_s: float = 2.0
    """How long `explain` waits for other processes on the engine."""
    open: tuple[str, ...] = ()
    """Topics that programs without Trunkline read and write: each message is one message of the engine.

    On NATS, open topics that match `durable` are also stored, for such programs to read.
    """
    open_format: str = "json"
    """The format of messages without a content type on open topics: "json", "msgpack" or "raw"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.namespace.replace("_", "").replace("-", "").isalnum() or not self.namespace.isascii():
            raise InvalidSettings(f"the namespace {self.namespace!r} must be letters, digits, - and _")
        for pattern in (*self.durable, *self.open):
            validate_pattern(pattern)


EVERYONE = "everyone"
"""The identity of clients that connect without a user name."""


class EngineUrl(NamedTuple):
    address: str
    settings: EngineSettings
    options: dict[str, str]

    @property
    def user(self) -> str:
        """The user in the URL: the identity of the client in the directory of channels."""
        return urlsplit(self.address).username or EVERYONE


def from_url(url: str, settings: EngineSettings | None = None, own: frozenset[str] = frozenset()) -> EngineUrl:
    """The address of a URL, and its settings. Options after the question mark override the given settings.

    `nats://a:4222,b:4222?namespace=x&durable=orders.>&durable=audit.>`. `own` are options of the adapter: they are
    returned as they are. Raises InvalidSettings for an option that is neither.
    """
    parts = urlsplit(url)
    named: dict[str, Any] = {}
    options: dict[str, str] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in own:
            options[key] = value
        elif key in ("durable", "open"):
            named[key] = [*named.get(key, []), value]
        else:
            named[key] = value
    known = {} if settings is None else msgspec.structs.asdict(settings)
    made = build(EngineSettings, {**known, **named})
    return EngineUrl(urlunsplit(parts._replace(query="", fragment="")), made, options)


def without_login(url: str) -> str:
    """The URL of a server for display: without user, password, token and options."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
