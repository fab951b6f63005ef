"""Admission: HELLO, and the list of connected clients. Its cost does not depend on the number of clients."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

from trunkline.brokers.broker import Feature
from trunkline.errors import ProtocolError
from trunkline.plural import counted
from trunkline.wire import control
from trunkline.wire.control import LETTERS_KEPT, VERSIONS
from trunkline.wire.frames import FIRST_FRAME_BYTES, room_for_body

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

log = logging.getLogger("trunkline.hub")

MAX_NAME = 255
FRESH_S = 300.0
"""The maximum difference between the time of a HELLO and the hub's clock."""
MAX_TOKENS = 100_000
"""The maximum number of tokens of one identity, within the time for which they are remembered."""
MAX_UNDATED = 10_000
"""The maximum number of tokens of one identity from HELLOs without a time."""
_ORIGIN_BITS = 62


class Tokens:
    """The tokens of HELLOs. Pure. A token is remembered as long as its HELLO would be accepted again.

    Those with a time become stale. The others are remembered as long as the hub runs. An identity that has reached its
    limit of tokens cannot connect; other identities are not affected.
    """

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._undated: set[tuple[str, str]] = set()
        self._counts: Counter[tuple[str, bool]] = Counter()

    def __len__(self) -> int:
        return len(self._until) + len(self._undated)

    def use(self, identity: str, token: str, at: float, now: float) -> None:
        """Raises ProtocolError if a HELLO with this token was already received, or cannot be remembered."""
        self._forget(now)
        if at and not abs(now - at) <= FRESH_S:
            raise ProtocolError(
                "stale", f"this HELLO is {now - at:.0f} s old, limit {FRESH_S:g} s: set the client's clock"
            )
        key = (identity, token)
        if key in self._until or key in self._undated:
            raise ProtocolError("replayed", "a HELLO with this token was already received")
        dated = bool(at)
        if self._counts[identity, dated] >= (MAX_TOKENS if dated else MAX_UNDATED):
            raise ProtocolError("too_many", f"{identity} has sent HELLO too often: try again later")
        self._counts[identity, dated] += 1
        if dated:
            self._until[key] = now + 2 * FRESH_S
        else:
            self._undated.add(key)

    def _forget(self, now: float) -> None:
        while self._until:
            key, until = next(iter(self._until.items()))
            if until >= now:
                return
            del self._until[key]
            self._counts[key[0], True] -= 1
            if not self._counts[key[0], True]:
                del self._counts[key[0], True]


class Admission:
    def __init__(self, hub: Hub, *, keeps_letters: bool) -> None:
        self._hub = hub
        self._kept = [LETTERS_KEPT] if keeps_letters else []
        self._tokens = Tokens()
        self._connections: Counter[str] = Counter()
        """The number of connections of each identity."""
        self._clients = 0
        self._origins: dict[int, Session] = {}

    def hello(self, session: Session, hello: control.Hello) -> control.Control | None:
        """Process HELLO. Raises ProtocolError if the client may try again; other errors end the connection."""
        if session.name:
            raise ProtocolError("out_of_order", "HELLO was already received")
        if hello.max_frame_bytes < FIRST_FRAME_BYTES:
            raise ProtocolError(
                "malformed", f"max_frame_bytes must be at least {FIRST_FRAME_BYTES:,}, not {hello.max_frame_bytes}"
            )
        if len(hello.token) > MAX_NAME:
            raise ProtocolError("malformed", f"the token has {len(hello.token)} characters, limit {MAX_NAME}")
        hub = self._hub
        version = next((each for each in VERSIONS if each in hello.versions), None)
        origin = origin_of(session.identity, hello.origin)
        before = self._origins.get(origin) if origin else None
        try:
            if version is None:
                raise ProtocolError(
                    "version", f"this hub speaks version {', '.join(map(str, VERSIONS))} of the protocol"
                )
            if hello.token:
                self._tokens.use(session.identity, hello.token, hello.at_ns / 1e9, hub.world.time_ns() / 1e9)
            if self._clients - (before is not None) >= hub.settings.max_clients:
                most = hub.settings.max_clients
                raise ProtocolError(
                    "too_many",
                    f"{counted(most, 'client')} connected already: raise max_clients, or try again later",
                )
            others = self._connections[session.identity] - (before is not None)
            if others >= hub.settings.limits.connections:
                raise ProtocolError("too_many", f"{session.identity} has {counted(others, 'connection')} already")
        except ProtocolError as error:
            details = {"versions": list(VERSIONS)} if version is None else {}
            session.send(control.Error(code=error.code, text=error.text, details=details, re=hello.id))
            session.end(error.text)
            return None
        if before is not None:
            # Its client noticed the lost connection before the hub did.
            before.end("its client has reconnected")
        self._enter(session, origin, hello.name, hello.max_frame_bytes)
        session.library = _printable(hello.library[:MAX_NAME])
        session.shares = hello.memory is not None and session.can_open(hello.memory)
        return control.Welcome(
            re=hello.id,
            version=version,
            hub=hub.id,
            session=session.id,
            identity=session.identity,
            heartbeat_s=hub.settings.heartbeat_s,
            window=hub.settings.window,
            # Half of the limit, so that the hub always reads from a client within it, including acknowledgements.
            window_bytes=hub.settings.limits.pending_bytes // 2,
            max_frame_bytes=hub.settings.max_frame_bytes,
            features=[*sorted(feature.value for feature in self._features()), *self._kept],
            memory=self._probe() if session.process else None,
            shares=session.shares,
        )

    def _probe(self) -> control.Probe | None:
        probe = self._hub.probe
        if probe is None:
            return None
        return control.Probe(descriptor=probe.descriptor, size=probe.size, token=probe.token)

    def _features(self) -> frozenset[Feature]:
        own = {Feature.CHANNELS, Feature.RIGHTS} if self._hub.access.restricts else {Feature.CHANNELS}
        return self._hub.broker.features | own

    def _enter(self, session: Session, origin: int, name: str, max_frame_bytes: int) -> None:
        session.origin = origin
        session.max_body_bytes = min(session.max_body_bytes, room_for_body(max_frame_bytes))
        if origin:
            self._origins[origin] = session
        self._connections[session.identity] += 1
        self._clients += 1
        session.name = _printable(name[:MAX_NAME]) or session.wire.peer.address
        session.protocol.greeted = True
        session.since_ns = self._hub.world.time_ns()
        log.info("%s connected: %s, %s", session.name, session.identity, session.wire.peer.address)

    def left(self, session: Session) -> None:
        if not session.name:
            return
        self._connections[session.identity] -= 1
        self._clients -= 1
        if not self._connections[session.identity]:
            del self._connections[session.identity]
        if self._origins.get(session.origin) is session:
            del self._origins[session.origin]


def origin_of(identity: str, claimed: int) -> int:
    """The origin that others see of a client. Another identity cannot claim the same one.

    It stays the same over reconnections and restarts of the hub, so that subscribers can detect missed messages.
    """
    if not claimed:
        return 0
    digest = blake2b(f"{claimed} {identity}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> (64 - _ORIGIN_BITS)) or 1


def _printable(name: str) -> str:
    """The name on one line, for logs."""
    return "".join(char if char.isprintable() else "?" for char in name)
