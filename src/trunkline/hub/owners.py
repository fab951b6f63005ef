"""The owners of durable subscriptions, at a hub with rules.

A durable subscription belongs to the identity that created it. Another identity can use its name only with the right to
administer its topics. A durable group is shared by all identities that may subscribe to its pattern. A subscription
that was created without rules belongs to the first identity that subscribes under its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from trunkline.errors import ProtocolError

MAX_OWNED: Final = 10_000
"""The maximum number of durable subscriptions of one identity."""


class DurableOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner of a durable subscription, and whether it is a group that others may join."""

    identity: str
    shared: bool = False


Keep = Callable[[dict[str, DurableOwner]], None]
"""Writes the owners to disk. Raises ProtocolError if that fails."""


class DurableOwners:
    """Owners by the names of durable subscriptions."""

    def __init__(self) -> None:
        self._owners: dict[str, DurableOwner] = {}
        self._counts: Counter[str] = Counter()

    def restore(self, owners: Mapping[str, DurableOwner], names: Iterable[str]) -> None:
        """Load the owners from an earlier run, for subscriptions that still exist."""
        there = set(names)
        self._replace({name: owner for name, owner in owners.items() if name in there})

    def kept(self) -> dict[str, DurableOwner]:
        return dict(self._owners)

    def may_use(self, name: str, identity: str) -> bool:
        owner = self._owners.get(name)
        return owner is None or owner.shared or owner.identity == identity

    def claim(self, name: str, owner: DurableOwner, *, exists: bool, keep: Keep | None) -> None:
        """Make an identity the owner of a name that it may use. Raises ProtocolError if it owns too many.

        If a subscription of this name `exists`, its owner does not change. `keep` is called before anything is changed.
        """
        before = self._owners.get(name)
        if before == owner or (before is not None and exists):
            return
        if self._counts[owner.identity] >= MAX_OWNED:
            raise ProtocolError("too_many", f"{owner.identity} has {MAX_OWNED} durable subscriptions already")
        owners = {**self._owners, name: owner}
        if keep is not None:
            keep(owners)
        self._replace(owners)

    def owner(self, name: str) -> str | None:
        """The identity that created it; None if the name has no owner."""
        owner = self._owners.get(name)
        return None if owner is None else owner.identity

    def forget(self, name: str, keep: Keep | None) -> None:
        """Remove the owner of a deleted subscription."""
        if name in self._owners:
            owners = {known: owner for known, owner in self._owners.items() if known != name}
            if keep is not None:
                keep(owners)
            self._replace(owners)

    def _replace(self, owners: dict[str, DurableOwner]) -> None:
        self._owners = owners
        self._counts = Counter(owner.identity for owner in owners.values())
