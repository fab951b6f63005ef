"""A router: several actors behind one address. Each message goes to one of them, or to all of them.

The members of a pool are started for it. Those of a group already exist, in this system or another one.
"""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from trunkline.actors.ref import Ref
from trunkline.message import Message

POINTS: Final = 64
"""The number of points of each member on the hash ring: enough that shares differ by a few per cent."""


class Routing(enum.StrEnum):
    ROUND_ROBIN = "round_robin"
    """Each member in turn."""
    LEAST_BUSY = "least_busy"
    """The member with the fewest messages in flight."""
    CONSISTENT_HASH = "consistent_hash"
    """Messages with the same key go to the same member. Few keys move when members are added or removed."""
    BROADCAST = "broadcast"
    """All members. A requester gets the first answer."""


class PoolMember(Protocol):
    name: str

    @property
    def load(self) -> int: ...


class FarMember:
    """A member of a group that belongs to another system."""

    __slots__ = ("name",)

    load = 0
    """The load of an actor in another system is not known."""

    def __init__(self, address: str) -> None:
        self.name = address


class Pool:
    """Chooses the members for a message, and does nothing else.

    `key` is for consistent hashing: the name of a message field, or a function. Messages with the same key go to the
    same member.
    """

    def __init__(self, routing: Routing, key: str | Callable[[Message], object] = "sender") -> None:
        self.routing = routing
        self.watchers: set[str] = set()
        """The names of actors of this system that are notified of its end."""
        self.spawn: Callable[..., Awaitable[Ref]] | None = None
        """Starts another member; None for a group."""
        self._key: Callable[[Message], object] = key if callable(key) else lambda message: getattr(message, key)
        self._members: list[Any] = []
        self._turn = 0
        self._ring: list[tuple[int, Any]] = []
        self._points: list[int] = []

    @property
    def members(self) -> Sequence[Any]:
        return tuple(self._members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def add(self, member: PoolMember) -> None:
        self._members.append(member)
        self._draw()

    def remove(self, member: PoolMember) -> None:
        self._members.remove(member)
        self._draw()

    def choose(self, message: Message) -> Sequence[Any]:
        """The members for a message: one, all, or none if there is none."""
        if self.routing is Routing.BROADCAST or not self._members:
            return self.members
        return (self.pick(message),)

    def pick(self, message: Message) -> Any:
        """The one member for a message; None if there is none."""
        if not self._members:
            return None
        match self.routing:
            case Routing.LEAST_BUSY:
                # Ties are resolved round-robin, so that idle members share evenly.
                self._turn += 1
                start = self._turn % len(self._members)
                return min((*self._members[start:], *self._members[:start]), key=lambda member: member.load)
            case Routing.CONSISTENT_HASH:
                at = bisect(self._points, _point(str(self._key(message)))) % len(self._points)
                return self._ring[at][1]
            case _:
                self._turn += 1
                return self._members[(self._turn - 1) % len(self._members)]

    def _draw(self) -> None:
        if self.routing is not Routing.CONSISTENT_HASH:
            return
        self._ring = sorted(
            ((_point(f"{member.name}#{number}"), member) for member in self._members for number in range(POINTS)),
            key=lambda entry: entry[0],
        )
        self._points = [point for point, _ in self._ring]


def _point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
