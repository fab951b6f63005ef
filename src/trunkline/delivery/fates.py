"""Fates: the outcome of a message for one subscriber, and the counters that must add up."""

from __future__ import annotations

import enum

import msgspec


class Fate(enum.StrEnum):
    DELIVERED = "delivered"
    FILTERED = "filtered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    DEAD = "dead"
    IN_FLIGHT = "in flight"
    REFUSED = "refused"
    """Not accepted: the publisher got an error, and no subscriber got the message."""
    UNKNOWN = "unknown"
    """Only in the answer of `explain`: there is no record of the outcome any more. The reason says why."""


class Outcome(msgspec.Struct, frozen=True):
    """The fate of one message for one subscriber, with its reason and its time (0 if no longer known)."""

    subscriber: str
    fate: Fate
    reason: str = ""
    at_ns: int = 0


class Account(msgspec.Struct, frozen=True):
    """The counters of one subscriber, or of all. `balanced` checks that they add up."""

    accepted: int = 0
    delivered: int = 0
    filtered: int = 0
    expired: int = 0
    dropped: int = 0
    dead: int = 0
    in_flight: int = 0

    @property
    def balanced(self) -> bool:
        settled = self.delivered + self.filtered + self.expired + self.dropped + self.dead
        return self.accepted == settled + self.in_flight

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    def __sub__(self, other: Account) -> Account:
        return Account(*(getattr(self, name) - getattr(other, name) for name in self.__struct_fields__))
