"""A channel: its contract, and those who produce and consume on it. The rules about them are in registry.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trunkline.wire import control
from trunkline.wire.control import ChannelChanged, ChannelInfo, DiscoveryResponse, PeerInfo, Qos
from trunkline.wire.told_metrics import ToldMetrics, told

ACTIVE = "active"
SUSPECTED = "suspected"
IDLE = "idle"
UNKNOWN = "unknown"

Registration = control.ProducerRegister | control.ConsumerRegister


class Peer:
    """A producer, registered by one session, or a consumer, known by its id, of which there is one on a channel."""

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
        """What a producer has, or a consumer expects."""
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
    """What is left of a channel without anybody on it: how it was created, by whom and when."""

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
        """An identity; empty while only consumers wait for somebody to produce."""
        self.created_ns = created_ns
        self.kept: KeptChannel | None = None
        """How it was created; None if it came by itself, and goes when nobody is left on it."""
        self.qos = Qos()
        self.description = ""
        self._hash = ""
        self._version = ""
        self.producers: dict[str, Peer] = {}
        """By session."""
        self.consumers: dict[str, Peer] = {}
        """By id."""

    @property
    def explicit(self) -> bool:
        """Whether it was created as such, and stays without anybody on it."""
        return self.kept is not None

    def become(self, kept: KeptChannel) -> None:
        """One that stays. Where its topics are is for the registry."""
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
        """The schema it would have if this session did not produce."""
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
        """By its producers, the most trusted first: who is not suspected, and was there first."""
        ranked = sorted(self.producers.values(), key=lambda each: (each.suspected, each.since_ns))
        return [each.registration for each in ranked if isinstance(each.registration, control.ProducerRegister)]

    def contract(self) -> tuple[Any, ...]:
        """What publishers must know."""
        return (self.pattern, self.schema_hash, self.qos)

    def refuses(self, expected: str) -> bool:
        """Whether a consumer that expects this schema is wrong here. Before anybody produces, nobody can tell."""
        settled = bool(self._hash or self.producers)
        return bool(expected) and settled and self.schema_hash != expected

    def strangers(self) -> list[Peer]:
        """Consumers who expect another schema."""
        return [each for each in self.consumers.values() if self.refuses(each.schema_hash)]

    # What it tells

    def sessions(self) -> list[str]:
        """Everybody on it, once."""
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

    def memory(self) -> ToldMetrics | None:
        """What the most trusted producer counts, of a channel in shared memory."""
        found = (told(each.metadata) for each in self._registrations())
        return next((each for each in found if each is not None), None)

    def discovered(self, re: int) -> DiscoveryResponse:
        """Where its data is, as the first of its producers says that says it."""
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
    """What a step brought: whether anything changed, who is told what, and the patterns whose contract is another."""

    def __init__(self, *, changed: bool = True) -> None:
        self.changed = changed
        self.notices: list[Notice] = []
        self.patterns: list[str] = []

    def notify(self, channel: Channel, event: str, name: str = "", but: str = "") -> None:
        change = ChannelChanged(channel=channel.name, event=event, name=name)
        self.notices += [Notice(session, change) for session in channel.sessions() if session != but]
