"""Rate limits: token buckets per key. Pure: the caller passes the time."""

from __future__ import annotations

from collections import OrderedDict

from trunkline.settings import Group

MAX_BUCKETS = 10_000
OTHERS = "…"


class Rate(Group, frozen=True, kw_only=True):
    """`per_s` messages a second on average, up to `burst` at once (a second's worth if not given)."""

    per_s: float
    burst: int | None = None

    @property
    def size(self) -> float:
        return float(self.burst) if self.burst is not None else max(1.0, self.per_s)


class Buckets:
    """One bucket per key, for up to `max_buckets` keys. A key whose bucket is full again can be forgotten.

    If all are in use, further keys share one bucket, so that clients cannot evade the limit with new names.
    """

    def __init__(self, rate: Rate, max_buckets: int = MAX_BUCKETS) -> None:
        self._rate = rate
        self._max = max_buckets
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now: float) -> float:
        """Take one token. Returns 0 if there was one, or the seconds until there will be one."""
        if key not in self._levels and len(self._levels) >= self._max and not self._forget_one(now):
            key = OTHERS
        level = self._level(self._levels.pop(key, (self._rate.size, now)), now)
        wait_s = 0.0
        # Rounding errors are tolerated: a caller that waited for the returned time must not have to wait again.
        if level >= 1.0 - 1e-6:
            level = max(0.0, level - 1.0)
        else:
            wait_s = (1.0 - level) / self._rate.per_s
        self._levels[key] = (level, now)
        return wait_s

    def charge(self, key: str, count: int, now: float) -> float:
        """Take several tokens at once. The level may become negative: returns the seconds until it is 0 again."""
        if key not in self._levels and len(self._levels) >= self._max and not self._forget_one(now):
            key = OTHERS
        level = self._level(self._levels.pop(key, (self._rate.size, now)), now) - count
        self._levels[key] = (level, now)
        return max(0.0, -level / self._rate.per_s)

    def _level(self, bucket: tuple[float, float], now: float) -> float:
        level, at = bucket
        # A clock that went back must not drain the bucket.
        return min(self._rate.size, level + max(0.0, now - at) * self._rate.per_s)

    def _forget_one(self, now: float) -> bool:
        """Forget the key that was idle longest, if its bucket is full again."""
        oldest = next(iter(self._levels))
        if self._level(self._levels[oldest], now) < self._rate.size:
            return False
        del self._levels[oldest]
        return True
