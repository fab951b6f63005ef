"""Notices of dropped messages, joined while the client is congested.

A client that does not read while others publish misses more and more messages. The size of the notices must not grow
with the number of messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from trunkline.wire.control import Dropped

MAX_KEPT = 1000
MAX_RANGES = 100


class Notices:
    """Joins consecutive drops with the same reason into one notice. No I/O."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int, int, str], Dropped] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, dropped: Dropped) -> Iterator[Dropped]:
        """Keep a notice. Yields the notices that can no longer be kept and must be sent."""
        key = (dropped.subscription, dropped.topic, dropped.origin, dropped.priority, dropped.reason)
        last = self._kept.pop(key, None)
        if last is not None:
            if (joined := _joined(last, dropped)) is not None:
                self._kept[key] = joined
                return
            yield last
        self._kept[key] = dropped
        if len(self._kept) > MAX_KEPT:
            yield self._kept.pop(next(iter(self._kept)))

    def take(self) -> list[Dropped]:
        """Remove and return all notices, oldest first."""
        kept, self._kept = self._kept, {}
        return list(kept.values())


def _joined(one: Dropped, other: Dropped) -> Dropped | None:
    if other.position != one.position + one.count:
        return None
    ranges = one.ranges
    for first, last in other.ranges:
        if ranges and ranges[-1][1] + 1 == first:
            ranges = [*ranges[:-1], (ranges[-1][0], last)]
        else:
            ranges = [*ranges, (first, last)]
    return None if len(ranges) > MAX_RANGES else replace(one, ranges=ranges, count=one.count + other.count)
