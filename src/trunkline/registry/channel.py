"""A channel: its contract, its producers and its consumers. The rules about them are in registry.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trunkline.wire import control
from trunkline.wire.control import ChannelChanged, ChannelInfo, DiscoveryResponse, PeerInfo, Qos
from trunkline.wire.reported_metrics import ReportedMetrics, read_metrics

ACTIVE = "active"
SUSPECTED = "suspected"
IDLE = "idle"
UNKNOWN = "unknown"

Registration = control.ProducerRegister | control.ConsumerRegister


class Peer:
    """A producer, identified by its session, or a consumer, identified by its id, which is unique on a channel."""

    def __init__(self, session: str, name: str, identity: str, since_ns: int, registration: Registration) -> None:
        self.session = session
        self.name = name
        self.identity = identity
        self.since_ns = since_ns
        self.suspected = False
        self.registration = registration

    def is_as(self, registration: Registration) -> bool:
        return replace(registration, id=0) == replace(self.registration, id=0)

    @property
    def schema_hash(self) -> str:
        """The schema that a producer has, or that a consumer expects."""
        own = self.registration
        return own.schema_hash if isinstance(own, control.ProducerRegister) else own.expected_schema_hash

    def info(self) -> PeerInfo:
        return PeerInfo(
            name=self.name,
            identity=self.identity,
            status=SUSPECTED if self.suspected else ACTIVE,
            since_ns=self.since_ns,
            config=self.registration.config if isinstance(self.registration, control.ProducerRegister) else None,
            metadata=self.registration.metadata,
        )


class KeptChannel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored part of a channel, without its members: how, by whom and when it was created."""

    channel: str
    pattern: str
    owner: str
    created_ns: int
    schema_hash: str = ""
    schema_version: str = ""
    qos: Qos = Qos()
    description: str = ""

    @classmethod
    def of(cls, request: control.ChannelCreate, owner: str, created_ns: int) -> KeptChannel:
        return cls(
            channel=request.channel,
            pattern=request.pattern or request.channel,
            owner=owner,
            created_ns=created_ns,
            schema_hash=request.schema_hash,
            schema_version=request.schema_version,
            qos=request.qos,
            description=request.description,
        )


class Channel:
    def __init__(self, name: str, owner: str, created_ns: int) -> None:
        self.name = name
        self.pattern = name
        self.owner = owner
        """The identity of the owner; empty while the channel has only consumers that wait for a producer."""
        self.created_ns = created_ns
        self.kept: KeptChannel | None = None
        """How it was created; None for an implicit channel, which is removed with its last member."""
        self.qos = Qos()
        self.description = ""
        self._hash = ""
        self._version = ""
        self.producers: dict[str, Peer] = {}
        """Producers, by session."""
        self.consumers: dict[str, Peer] = {}
        """Consumers, by id."""

    @property
    def explicit(self) -> bool:
        """Whether it was created explicitly, and so remains without members."""
        return self.kept is not None

    def become(self, kept: KeptChannel) -> None:
        """Turn an implicit channel into an explicit one. The registry maintains its topics."""
        self.kept = kept
        self.owner = kept.owner
        self.qos = kept.qos
        self.description = kept.description
        self._hash, self._version = kept.schema_hash, kept.schema_version

    # The schema

    @property
    def schema_hash(self) -> str:
        return self.schema_without("")

    def schema_without(self, session: str) -> str:
        """The schema that it would have without this producer."""
        if self._hash:
            return self._hash
        hashes = (each.schema_hash for each in self.producers.values() if each.session != session)
        return next(filter(None, hashes), "")

    @property
    def schema_version(self) -> str:
        if self._hash:
            return self._version
        return next((each.schema_version for each in self._registrations() if each.schema_hash), "")

    def _registrations(self) -> list[control.ProducerRegister]:
        """The registrations of its producers: those that are not suspected first, then by age."""
        ranked = sorted(self.producers.values(), key=lambda each: (each.suspected, each.since_ns))
        return [each.registration for each in ranked if isinstance(each.registration, control.ProducerRegister)]

    def contract(self) -> tuple[Any, ...]:
        """The part of the contract that publishers need."""
        return (self.pattern, self.schema_hash, self.qos)

    def refuses(self, expected: str) -> bool:
        """Whether a consumer that expects this schema is refused.

        Without a schema and without a producer, a channel refuses none.
        """
        settled = bool(self._hash or self.producers)
        return bool(expected) and settled and self.schema_hash != expected

    def strangers(self) -> list[Peer]:
        """Consumers that expect another schema."""
        return [each for each in self.consumers.values() if self.refuses(each.schema_hash)]

    # Descriptions

    def sessions(self) -> list[str]:
        """The sessions of all members, without duplicates."""
        return list(dict.fromkeys((*self.producers, *(each.session for each in self.consumers.values()))))

    def info(self, *, whole: bool) -> ChannelInfo:
        return ChannelInfo(
            channel=self.name,
            pattern=self.pattern,
            owner=self.owner,
            created_ns=self.created_ns,
            schema_hash=self.schema_hash,
            schema_version=self.schema_version,
            qos=self.qos,
            description=self.description,
            producers=[each.info() for each in self.producers.values()] if whole else [],
            consumers=[each.info() for each in self.consumers.values()] if whole else [],
            memory={} if (found := self.memory()) is None else msgspec.to_builtins(found),
        )

    def memory(self) -> ReportedMetrics | None:
        """The counters of the most trusted producer, for a channel in shared memory."""
        found = (read_metrics(each.metadata) for each in self._registrations())
        return next((each for each in found if each is not None), None)

    def discovered(self, re: int) -> DiscoveryResponse:
        """The location of its data, from the first producer that gives one."""
        active = any(not each.suspected for each in self.producers.values())
        return DiscoveryResponse(
            re=re,
            channel=self.name,
            shm_name=next((each.shm_name for each in self._registrations() if each.shm_name), ""),
            schema_hash=self.schema_hash,
            schema_version=self.schema_version,
            status=ACTIVE if active else SUSPECTED if self.producers else IDLE,
            producers=[each.info() for each in self.producers.values()],
            consumers=[each.info() for each in self.consumers.values()],
        )


class Notice(NamedTuple):
    session: str
    change: ChannelChanged


class Effect:
    """The result of a step: whether anything changed, notifications to send, patterns whose contract changed."""

    def __init__(self, *, changed: bool = True) -> None:
        self.changed = changed
        self.notices: list[Notice] = []
        self.patterns: list[str] = []

    def notify(self, channel: Channel, event: str, name: str = "", but: str = "") -> None:
        change = ChannelChanged(channel=channel.name, event=event, name=name)
        self.notices += [Notice(session, change) for session in channel.sessions() if session != but]
