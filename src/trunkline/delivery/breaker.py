"""The circuit breaker: stops sending to a recipient that keeps failing, and tries again later. Pure."""

from __future__ import annotations

import enum

from trunkline.settings import Group


class Breaker(Group, frozen=True, kw_only=True):
    """Opens after `failures` in a row; after `open_s` it lets `probes` messages through to test the recipient."""

    failures: int = 5
    open_s: float = 30.0
    probes: int = 1
    max_circuits: int = 10_000


class BreakerState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Circuit:
    """The state for one recipient."""

    __slots__ = ("_failures", "_opened_at", "_probes", "_rules", "state")

    def __init__(self, rules: Breaker) -> None:
        self._rules = rules
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._opened_at = 0.0
        self._probes = 0

    def allow(self, now: float) -> float:
        """Returns 0 to let one message through, or the seconds until the next attempt."""
        if self.state is BreakerState.OPEN:
            left = self._opened_at + self._rules.open_s - now
            if left > 0:
                return left
            self.state = BreakerState.HALF_OPEN
            self._probes = 0
            self._opened_at = now
        if self.state is BreakerState.HALF_OPEN:
            if self._probes >= self._rules.probes:
                # A probe whose result never arrives (expired, dropped) must not block the recipient for ever.
                left = self._opened_at + self._rules.open_s - now
                if left > 0:
                    return left
                self._probes = 0
                self._opened_at = now
            self._probes += 1
        return 0.0

    def succeeded(self) -> None:
        self.state = BreakerState.CLOSED
        self._failures = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or self._failures >= self._rules.failures:
            self.state = BreakerState.OPEN
            self._opened_at = now
