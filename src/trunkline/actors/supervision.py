"""Supervision, decided: who is started anew when an actor fails, after which pause, and when it is too often.

Pure: failures and times come in, decisions come out. What is done about them is the system's business.
"""

from __future__ import annotations

import enum
from collections import deque

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.settings import Group


class Strategy(enum.StrEnum):
    """Whom the failure of a child concerns."""

    ONE_FOR_ONE = "one_for_one"
    """The child alone."""
    ONE_FOR_ALL = "one_for_all"
    """All children of its parent."""
    REST_FOR_ONE = "rest_for_one"
    """The child, and those that were started after it."""


class Lifetime(enum.StrEnum):
    """When a child that has ended is started anew."""

    PERMANENT = "permanent"
    """Always: when it failed, and when it stopped by itself."""
    TRANSIENT = "transient"
    """When it failed."""
    TEMPORARY = "temporary"
    """Never."""


class Restart(Group, frozen=True, kw_only=True):
    """How a child is started anew: at most `times` `within_s` seconds, after a pause that doubles each time.

    More often than that, its failure is its parent's.
    """

    may_be_zero = frozenset({"times"})

    lifetime: Lifetime = Lifetime.TRANSIENT
    times: int = 5
    within_s: float = 60.0
    backoff_s: float = 0.1
    max_backoff_s: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_backoff_s < self.backoff_s:
            raise InvalidSettings(
                f"Restart.max_backoff_s ({self.max_backoff_s:g}) is below backoff_s ({self.backoff_s:g})"
            )


class Verdict(msgspec.Struct, frozen=True):
    """What is to be done after a child has ended.

    `restart` are those to be started anew, in this order, after `pause_s`; they are stopped before, from the last to
    the first. `escalate`: the parent fails by this. Neither: the child is gone.
    """

    restart: tuple[str, ...] = ()
    pause_s: float = 0.0
    escalate: bool = False


class Supervisor:
    """The children of one parent, in the order they were started, and how often they have failed lately."""

    def __init__(self, strategy: Strategy = Strategy.ONE_FOR_ONE) -> None:
        self.strategy = strategy
        self._children: dict[str, Restart] = {}
        self._restarts: dict[str, deque[float]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._children

    def __len__(self) -> int:
        return len(self._children)

    @property
    def children(self) -> tuple[str, ...]:
        return tuple(self._children)

    def add(self, name: str, restart: Restart) -> None:
        self._children[name] = restart

    def remove(self, name: str) -> None:
        """It is gone for good."""
        self._children.pop(name, None)
        self._restarts.pop(name, None)

    def restarts(self, name: str) -> int:
        """How often it was started anew within the time that counts."""
        return len(self._restarts.get(name, ()))

    def ended(self, name: str, now_s: float, *, failed: bool) -> Verdict:
        """A child has ended, by itself or by an error."""
        restart = self._children[name]
        if restart.lifetime is Lifetime.TEMPORARY or (restart.lifetime is Lifetime.TRANSIENT and not failed):
            self.remove(name)
            return Verdict()
        lately = self._restarts.get(name)
        if lately is None:
            # Most children never fail.
            lately = self._restarts[name] = deque()
        while lately and now_s > lately[0] + restart.within_s:
            lately.popleft()
        if len(lately) >= restart.times:
            self.remove(name)
            return Verdict(escalate=True)
        pause_s = min(restart.max_backoff_s, restart.backoff_s * 2 ** len(lately))
        lately.append(now_s)
        return Verdict(self._concerned(name), pause_s)

    def _concerned(self, name: str) -> tuple[str, ...]:
        match self.strategy:
            case Strategy.ONE_FOR_ONE:
                return (name,)
            case Strategy.ONE_FOR_ALL:
                return self.children
            case Strategy.REST_FOR_ONE:
                names = self.children
                return names[names.index(name) :]
