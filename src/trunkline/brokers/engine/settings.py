"""How a client behaves towards an engine: a NATS or a Redis server."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.settings import Group, build
from trunkline.topic import validate_pattern


class EngineSettings(Group, frozen=True, kw_only=True):
    """`namespace` keeps the subjects, streams and keys of this bus apart from those of others on the same server.

    Topics that match `durable` are stored by the engine before their publish returns. A durable subscription and a
    group add their pattern to those. `connect_s` is how long calls wait for a server that does not answer.
    """

    namespace: str = "tl"
    durable: tuple[str, ...] = ()
    replicas: int = 1
    """Servers of a cluster that keep a copy of what is stored."""
    max_age_s: float | None = None
    """How long the engine keeps what it stores; for ever, unless given."""
    max_bytes: int | None = None
    """How much the engine keeps of what it stores. The oldest goes first."""
    synced: bool = False
    """Whether the server is known to sync to disk before it acknowledges: no warning then."""
    lease_s: float = 30.0
    """How long after the death of a member the engine gives what it held to others."""
    connect_s: float = 5.0
    backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    max_unsent_bytes: int = 64 * 1024 * 1024
    """How many bytes may wait while there is no connection."""
    max_inbox_bytes: int = 64 * 1024 * 1024
    """How many bytes may wait in one subscriber's inbox. A single larger message still passes."""
    answer_s: float = 2.0
    """How long `explain` waits for other processes on the engine."""
    open: tuple[str, ...] = ()
    """Topics that programs without Trunkline read and write: each message is one message of the engine.

    On NATS, those that match `durable` are stored, too, for such programs to read.
    """
    open_format: str = "json"
    """What is read from an open topic without a content type: "json", "msgpack" or "raw"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.namespace.replace("_", "").replace("-", "").isalnum() or not self.namespace.isascii():
            raise InvalidSettings(f"the namespace {self.namespace!r} must be letters, digits, - and _")
        for pattern in (*self.durable, *self.open):
            validate_pattern(pattern)


EVERYONE = "everyone"
"""Who connects without a user name."""


class EngineUrl(NamedTuple):
    address: str
    settings: EngineSettings
    options: dict[str, str]

    @property
    def user(self) -> str:
        """Who the URL says the client is: an identity in the directory of channels."""
        return urlsplit(self.address).username or EVERYONE


def from_url(url: str, settings: EngineSettings | None = None, own: frozenset[str] = frozenset()) -> EngineUrl:
    """The address of a URL, and the settings that it names after a question mark, over those given.

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
    """A URL of a server as it may be shown: without user, password, token and options."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
