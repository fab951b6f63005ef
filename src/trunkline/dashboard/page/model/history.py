"""An hour of traffic, one point per second, computed from snapshots. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from trunkline.wire.snapshot import HubSnapshot, SubscriberSnapshot

HOUR_S = 3600
SMOOTH_NS = 2_000_000_000
"""Rates are averages over the last two seconds, which smooths bursts."""


class TrafficPoint(msgspec.Struct, frozen=True):
    """One second. Rates are messages per second. None means unknown: no snapshot was taken in that second."""

    at_s: int
    published: float
    delivered: float | None = None
    lost: float | None = None
    """Dropped, expired and dead messages."""
    waiting: int | None = None
    behind: int | None = None
    answer_ms: float | None = None
    """How long the hub took to answer."""


class Counted(msgspec.Struct, frozen=True):
    """The counters from which rates are computed."""

    at_ns: int
    hub: str
    published: int
    delivered: int
    lost: int
    topics: dict[str, int]
    subscribers: dict[str, int]


def key_of(subscriber: SubscriberSnapshot) -> str:
    """A unique key: several clients can have subscribers with the same name."""
    return f"{subscriber.session}/{subscriber.name}/{subscriber.pattern}"


def _counted(snapshot: HubSnapshot) -> Counted:
    account = snapshot.account
    return Counted(
        at_ns=snapshot.at_ns,
        hub=snapshot.hub,
        published=snapshot.published,
        delivered=account.get("delivered", 0),
        lost=sum(account.get(fate, 0) for fate in ("dropped", "expired", "dead")),
        topics={each.topic: each.published for each in snapshot.topics},
        subscribers={key_of(each): each.delivered for each in snapshot.subscribers},
    )


def percentiles(sorted_values: Sequence[float]) -> tuple[float, float, float]:
    """The median and the 95th and 99th percentiles; zeros if there are no values."""
    if not sorted_values:
        return 0.0, 0.0, 0.0
    last = len(sorted_values) - 1
    at = [sorted_values[min(last, int(len(sorted_values) * share))] for share in (0.5, 0.95, 0.99)]
    return at[0], at[1], at[2]


class TrafficHistory:
    """Current rates, and one point per second for the last hour. A restart of the hub resets the counters."""

    def __init__(self) -> None:
        self.points: deque[TrafficPoint] = deque(maxlen=HOUR_S)
        self._counted: deque[Counted] = deque()

    def add(self, snapshot: HubSnapshot, answer_s: float) -> None:
        now = _counted(snapshot)
        if self._counted and self._counted[-1].hub != now.hub:
            self._counted.clear()
        while len(self._counted) > 1 and now.at_ns - self._counted[1].at_ns >= SMOOTH_NS:
            self._counted.popleft()
        self._counted.append(now)
        first = self._counted[0]
        point = TrafficPoint(
            at_s=now.at_ns // 1_000_000_000,
            published=self._rate(now.published - first.published),
            delivered=self._rate(now.delivered - first.delivered),
            lost=self._rate(now.lost - first.lost),
            waiting=sum(each.waiting for each in snapshot.subscribers),
            behind=sum(each.behind for each in snapshot.subscribers),
            answer_ms=answer_s * 1000,
        )
        if self.points and self.points[-1].at_s >= point.at_s:
            # The slowest answer of the second is kept.
            slowest_ms = max(answer_s * 1000, self.points[-1].answer_ms or 0.0)
            point = msgspec.structs.replace(point, answer_ms=slowest_ms)
            self.points.pop()
        self.points.append(point)
        while self.points[-1].at_s - self.points[0].at_s >= HOUR_S:
            self.points.popleft()

    def recall(self, accepted: dict[int, float], step_s: int) -> None:
        """Prepend points from a journal, for the time before the first snapshot.

        `accepted` has the number of messages by step. A step is `step_s` long; steps are numbered since 1970.
        """
        if not accepted:
            return
        end = self.points[0].at_s // step_s if self.points else max(accepted) + 1
        steps = range(max(end - HOUR_S // step_s, min(accepted)), end)
        before = [TrafficPoint(step * step_s, accepted.get(step, 0.0) / step_s) for step in steps]
        self.points.extendleft(reversed(before))

    def topic_rate(self, topic: str) -> float:
        if not self._counted:
            return 0.0
        first, last = self._counted[0], self._counted[-1]
        return self._rate(last.topics.get(topic, 0) - first.topics.get(topic, 0))

    def subscriber_rate(self, subscriber: SubscriberSnapshot) -> float:
        """Delivered messages per second."""
        if not self._counted:
            return 0.0
        key = key_of(subscriber)
        first, last = self._counted[0], self._counted[-1]
        return self._rate(last.subscribers.get(key, 0) - first.subscribers.get(key, 0))

    def _rate(self, count: int) -> float:
        took_ns = self._counted[-1].at_ns - self._counted[0].at_ns
        # Fates can be corrected, so a count can fall. A rate is never negative.
        return max(0.0, count * 1e9 / took_ns) if took_ns > 0 else 0.0
