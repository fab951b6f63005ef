"""Deduplication: whether an id was seen within the window. Pure: times come in."""

from __future__ import annotations

from collections import OrderedDict

MAX_IDS = 100_000


class Window:
    """The ids of the last `window_s` seconds, at most `max_ids` of them."""

    def __init__(self, window_s: float, max_ids: int = MAX_IDS) -> None:
        self.window_s = window_s
        self._max = max_ids
        # Ordered: taking the first out of a plain dict, again and again, walks over all that were there before.
        self._seen: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, id: str, now: float) -> bool:
        """Whether the id came before, within the window; if not, it has come now."""
        seen = self._seen
        # Ids stand in the order in which they came, so the oldest are in front. One from the future came before the
        # clock went back: nobody knows how old it is.
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
