"""Access control: the actions that rules allow to identities. The transport determines the identity of a client.

Rights are one pure function of the identity, the action, and the topic or pattern. Internal topics of the bus:

    _reply.X   belongs to the connection that proves it with a secret: only that connection may subscribe to it,
               whatever the rules are, and no wildcard reaches it. Every identity with any rule may publish to it,
               because answering needs no separate right. The name is random, so only receivers of the request have it.
    _dead.X    counts as X, for topics and for patterns: `_dead.data.>` as `data.>`, `_dead.>` as `>`. It carries
               notices of subscribers of X, so an identity that may subscribe to X may also publish it.
    _control.X    has the commands for the bus X. Publishing needs `administer` on `_to.X`, and no rule for publishing
               replaces that; a pattern, and `_control` alone, need it on `>`. Subscribing counts as `_to.X`.
    _heartbeat.X  has the health of the bus X. Publishing and subscribing count as subscribing to `_to.X`: an identity
               that may only send to X cannot fake its heartbeats.
    _kernel.ask.X  is asked before the kernel X is joined, and counts as `kernel.X.shell.kernel_info_request`. The rest
               of `_kernel.>`, which lists all kernels, counts as `kernel.>`.
    the rest   (`_to.NAME`, `_all`, `_state.X`, `_reply`) are topics like any other: a rule must cover them.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Sequence
from fnmatch import fnmatchcase

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.topic import (
    CONTROL,
    CONTROL_PREFIX,
    DEAD_PREFIX,
    EVERYTHING,
    HEARTBEAT_PREFIX,
    KERNELS_PREFIX,
    MAX_TOPIC_CHARS,
    REPLY_PREFIX,
    covers,
    endpoint,
    is_wild,
    matches,
    too_long,
    validate_pattern,
)

MAX_REMEMBERED = 100_000


class Action(enum.StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CREATE = "create"
    """Channels and schemas."""
    ADMINISTER = "administer"
    """Destroy channels of others, trace, see all statistics."""


class AccessRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allows identities (`who`) some actions (`may`) on some topics (`on`).

    `who` is an identity, with `*` and `?` for parts of it: `cert:sensor-*`, `uid:1000`.
    """

    who: str
    may: tuple[Action, ...]
    on: tuple[str, ...] = (">",)
    """Patterns of topics and channels."""

    def __post_init__(self) -> None:
        for pattern in self.on:
            validate_pattern(pattern)


class Access:
    """The rights of all identities.

    Without rules every client may do everything; with rules, only what a rule allows.
    """

    def __init__(self, rules: Sequence[AccessRule] = ()) -> None:
        self._rules = tuple(rules)
        self._rules_of: dict[str, tuple[AccessRule, ...]] = {}
        self._known: dict[tuple[str, Action, str], bool] = {}

    @property
    def restricts(self) -> bool:
        """Whether there are rules."""
        return bool(self._rules)

    def knows(self, identity: str) -> bool:
        """Whether any rule applies to this identity."""
        return not self._rules or bool(self._of(identity))

    def may(self, identity: str, action: Action, pattern: str, own: Container[str] = ()) -> bool:
        """Whether an identity may perform an action on every topic that a pattern matches.

        Raises InvalidTopic if it is too long. `own` are the reply topics that its connection has proved to be its own.
        """
        if not self._rules:
            return True
        if len(pattern) > MAX_TOPIC_CHARS:
            # Not cached: an invalid pattern of a client must not cost more than a valid one.
            raise too_long(pattern)
        if pattern.startswith(REPLY_PREFIX):
            # Never cached: there is one for each bus, and it depends on the connection.
            return self._may_reply(identity, action, pattern, own)
        key = (identity, action, pattern)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._allowed(identity, action, pattern)
        return known

    def _may_reply(self, identity: str, action: Action, topic: str, own: Container[str]) -> bool:
        if is_wild(topic) or not self._of(identity):
            return False
        return action is Action.PUBLISH or (action is Action.SUBSCRIBE and topic in own)

    def _allowed(self, identity: str, action: Action, pattern: str) -> bool:
        if action is Action.PUBLISH and (pattern == CONTROL or pattern.startswith(CONTROL_PREFIX)):
            named = pattern != CONTROL and not is_wild(pattern)
            about = endpoint(pattern.removeprefix(CONTROL_PREFIX)) if named else EVERYTHING
            return self._covered(identity, Action.ADMINISTER, about)
        if self._covered(identity, action, pattern):
            return True
        if pattern.startswith((CONTROL_PREFIX, HEARTBEAT_PREFIX)) and action in (Action.PUBLISH, Action.SUBSCRIBE):
            return self._covered(identity, Action.SUBSCRIBE, endpoint(pattern.partition(".")[2]))
        if pattern.startswith(KERNELS_PREFIX):
            kernel = pattern.removeprefix(f"{KERNELS_PREFIX}ask").removeprefix(".")
            one = pattern.startswith(f"{KERNELS_PREFIX}ask.") and not is_wild(pattern)
            return self._covered(identity, action, f"kernel.{kernel}.shell.kernel_info_request" if one else "kernel.>")
        if not pattern.startswith(DEAD_PREFIX):
            return False
        about = pattern.removeprefix(DEAD_PREFIX)
        return self._allowed(identity, action, about) or (
            action is Action.PUBLISH and self._allowed(identity, Action.SUBSCRIBE, about)
        )

    def _covered(self, identity: str, action: Action, pattern: str) -> bool:
        return any(action in rule.may and any(covers(wide, pattern) for wide in rule.on) for rule in self._of(identity))

    def _of(self, identity: str) -> tuple[AccessRule, ...]:
        found = self._rules_of.get(identity)
        if found is None:
            if len(self._rules_of) >= MAX_REMEMBERED:
                self._rules_of.clear()
            found = tuple(rule for rule in self._rules if fnmatchcase(identity, rule.who))
            self._rules_of[identity] = found
        return found

    @classmethod
    def load(cls, rules: Sequence[object]) -> Access:
        """Read rules from plain values, as in a TOML file: `who = "cert:*", may = ["publish"], on = ["data.>"]`."""
        try:
            return cls(msgspec.convert(list(rules), list[AccessRule]))
        except msgspec.ValidationError as error:
            raise InvalidSettings(f"an access rule is invalid: {error}") from error


def reaches(pattern: str, topic: str) -> bool:
    """Whether a subscription to the pattern gets what is published on the topic, at a hub with rules."""
    return pattern == topic if topic.startswith(REPLY_PREFIX) else matches(pattern, topic)
