"""Rate limits: token buckets per key. Pure: times come in."""

from __future__ import annotations

from trunkline.settings import Group

MAX_BUCKETS = 10_000


class Rate(Group, frozen=True, kw_only=True):
    """`per_s` messages a second on average, up to `burst` at once (a second's worth if not given)."""

    per_s: float
    burst: int | None = None

    @property
    def size(self) -> float:
        return float(self.burst) if self.burst is not None else max(1.0, self.per_s)


class Buckets:
    """One bucket per key; the key that was idle longest is forgotten first, when its bucket is full again anyway."""

    def __init__(self, rate: Rate, max_buckets: int = MAX_BUCKETS) -> None:
        self._rate = rate
        self._max = max_buckets
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now: float) -> float:
        """0 if one token was there, or the seconds until it will be."""
        level, at = self._levels.pop(key, (self._rate.size, now))
        # A clock that went back must not drain the bucket.
        level = min(self._rate.size, level + max(0.0, now - at) * self._rate.per_s)
        wait_s = 0.0
        if level >= 1.0:
            level -= 1.0
        else:
            wait_s = (1.0 - level) / self._rate.per_s
        self._levels[key] = (level, now)
        if len(self._levels) > self._max:
            del self._levels[next(iter(self._levels))]
        return wait_s
