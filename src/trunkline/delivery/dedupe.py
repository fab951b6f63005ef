"""Deduplication: whether an id was seen within the window. Pure: the caller passes the time."""

from __future__ import annotations

from collections import OrderedDict

MAX_IDS = 100_000


class Window:
    """The ids of the last `window_s` seconds, at most `max_ids` of them."""

    def __init__(self, window_s: float, max_ids: int = MAX_IDS) -> None:
        self.window_s = window_s
        self._max = max_ids
        # Not a plain dict: there, repeatedly removing the first key walks over all keys removed before.
        self._seen: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, id: str, now: float) -> bool:
        """Whether the id was seen before, within the window. If not, it is recorded."""
        seen = self._seen
        # Ids are in order of arrival, so the oldest come first. If the time of an id is in the future, the clock was
        # set back: its age is unknown, and it is removed.
        while seen:
            oldest, at = next(iter(seen.items()))
            if 0 <= now - at < self.window_s:
                break
            del seen[oldest]
        if id in seen:
            return True
        if len(seen) >= self._max:
            seen.popitem(last=False)
        seen[id] = now
        return False
