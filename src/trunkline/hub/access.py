"""Access: what an identity may do, by rules. Who somebody is comes from the transport, never from what they say."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.topic import OWN_PREFIXES, covers, validate_pattern


class Action(enum.StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CREATE = "create"
    """Channels and schemas."""
    ADMINISTER = "administer"
    """Destroy what others own, trace, see everybody's statistics."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what, where. `who` is an identity, with `*` and `?` for parts of it: `cert:sensor-*`, `uid:1000`."""

    who: str
    may: tuple[Action, ...]
    on: tuple[str, ...] = (">",)
    """Patterns of topics and channels."""

    def __post_init__(self) -> None:
        for pattern in self.on:
            validate_pattern(pattern)


class Access:
    """Without rules everybody who gets in may do everything. With rules, nothing but what one of them allows."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)
        self._known: dict[tuple[str, Action, str], bool] = {}

    def may(self, identity: str, action: Action, pattern: str) -> bool:
        """Whether an identity may do it on everything that a pattern, or a topic, names."""
        if not self._rules:
            return True
        key = (identity, action, pattern)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 100_000:
                self._known.clear()
            known = self._known[key] = self._allowed(identity, action, pattern)
        return known

    def _allowed(self, identity: str, action: Action, pattern: str) -> bool:
        mine = [rule for rule in self._rules if fnmatchcase(identity, rule.who)]
        if action in (Action.PUBLISH, Action.SUBSCRIBE) and mine and pattern.startswith(OWN_PREFIXES):
            # Answers and notices: their topics cannot be guessed, and asking would be no use without them.
            return True
        return any(action in rule.may and any(covers(wide, pattern) for wide in rule.on) for rule in mine)

    @classmethod
    def load(cls, rules: Sequence[object]) -> Access:
        """From plain values, as a TOML file has them: `who = "cert:*", may = ["publish"], on = ["data.>"]`."""
        try:
            return cls(msgspec.convert(list(rules), list[Rule]))
        except msgspec.ValidationError as error:
            raise InvalidSettings(f"a rule of access makes no sense: {error}") from error
