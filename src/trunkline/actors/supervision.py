"""The decisions of supervision: what to do after a failure, which actors to restart, when, and when to give up.

Pure: failures and times come in, decisions come out. failures.py carries them out.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.settings import Group


class Directive(enum.StrEnum):
    """What happens after a failure."""

    RESUME = "resume"
    """The incarnation continues with its state, after the message on which it failed."""
    RESTART = "restart"
    """A new incarnation takes its place, according to `Restart`."""
    STOP = "stop"
    """The actor ends permanently."""
    ESCALATE = "escalate"
    """The actor ends permanently, and its parent fails. The failure of a top-level actor ends the system."""


Directives = Mapping[type[BaseException], Directive]


def decide(directives: Directives, error: BaseException | None) -> Directive:
    """The directive for an error: the entry of its class or of the nearest base class; RESTART if there is none.

    An error that stands for its `__cause__` (the error of a child, or of an actor in another process) gets the
    directive of the cause if it has no entry itself.
    """
    while error is not None:
        for kind in type(error).__mro__:
            if kind in directives and kind not in ANY_ERROR:
                return directives[kind]
        if not getattr(error, "stands_for_cause", False) or error.__cause__ is None:
            break
        error = error.__cause__
    if error is None:
        return Directive.RESTART
    general = (directives[kind] for kind in type(error).__mro__ if kind in directives)
    return next(general, Directive.RESTART)


ANY_ERROR: Final = (Exception, BaseException)


class Strategy(enum.StrEnum):
    """Which children are affected when one of them fails."""

    ONE_FOR_ONE = "one_for_one"
    """The child alone."""
    ONE_FOR_ALL = "one_for_all"
    """All children of its parent."""
    REST_FOR_ONE = "rest_for_one"
    """The child, and those that were started after it."""


class Lifetime(enum.StrEnum):
    """When a child that has ended is restarted."""

    PERMANENT = "permanent"
    """Always: when it failed, and when it stopped by itself."""
    TRANSIENT = "transient"
    """When it failed."""
    TEMPORARY = "temporary"
    """Never."""


class Restart(Group, frozen=True, kw_only=True):
    """How a child is restarted: after a pause that doubles with each failure of the last `within_s` seconds.

    The pauses vary randomly by the fraction `jitter`, so that actors that failed together do not all start together.
    With `times`, a child that has failed more often than that within `within_s` seconds ends, and its failure is passed
    to its parent. Without `times`, it is restarted each time.
    """

    may_be_zero = frozenset({"times", "jitter"})

    lifetime: Lifetime = Lifetime.TRANSIENT
    times: int | None = None
    within_s: float = 60.0
    backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jitter > 1:
            raise InvalidSettings(f"Restart.jitter must be a fraction of the pause, at most 1, not {self.jitter!r}")
        if self.max_backoff_s < self.backoff_s:
            raise InvalidSettings(
                f"Restart.max_backoff_s ({self.max_backoff_s:g}) is below backoff_s ({self.backoff_s:g})"
            )


MAX_DOUBLED: Final = 60
"""The maximum number of times that a pause is doubled: more would be too large for a float."""


class Verdict(msgspec.Struct, frozen=True):
    """The decision after a child has ended.

    `restart` are the children to restart, in this order, after `pause_s`. They are stopped first, from the last to the
    first. With `escalate`, the parent fails. If neither is set, the child has ended permanently.
    """

    restart: tuple[str, ...] = ()
    pause_s: float = 0.0
    escalate: bool = False


class Supervisor:
    """The children of one parent, in the order they were started, and their recent restarts."""

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
        """Remove a child that has ended permanently."""
        self._children.pop(name, None)
        self._restarts.pop(name, None)

    def restarts(self, name: str) -> int:
        """The number of its recent restarts, which count for the next decision."""
        return len(self._restarts.get(name, ()))

    def ended(
        self,
        name: str,
        now_s: float,
        *,
        failed: bool,
        directive: Directive = Directive.RESTART,
        chance: float = 0.5,
    ) -> Verdict:
        """Decide after a child has ended, by itself or by an error.

        `chance`, from 0 to 1, determines the jitter of the pause.
        """
        restart = self._children[name]
        if directive is Directive.ESCALATE or directive is Directive.STOP:
            self.remove(name)
            return Verdict(escalate=directive is Directive.ESCALATE)
        if restart.lifetime is Lifetime.TEMPORARY or (restart.lifetime is Lifetime.TRANSIENT and not failed):
            self.remove(name)
            return Verdict()
        lately = self._restarts.get(name)
        if lately is None:
            # Most children never fail.
            lately = self._restarts[name] = deque()
        while lately and now_s > lately[0] + restart.within_s:
            lately.popleft()
        if restart.times is not None and len(lately) >= restart.times:
            self.remove(name)
            return Verdict(escalate=True)
        pause_s = min(restart.max_backoff_s, restart.backoff_s * 2 ** min(len(lately), MAX_DOUBLED))
        lately.append(now_s)
        return Verdict(self._concerned(name), pause_s * (1 + restart.jitter * (2 * chance - 1)))

    def _concerned(self, name: str) -> tuple[str, ...]:
        match self.strategy:
            case Strategy.ONE_FOR_ONE:
                return (name,)
            case Strategy.ONE_FOR_ALL:
                return self.children
            case Strategy.REST_FOR_ONE:
                names = self.children
                return names[names.index(name) :]
