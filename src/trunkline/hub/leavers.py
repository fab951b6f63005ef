"""Leavers: subscriptions whose connection has ended. Their client may reconnect and still report fates."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from trunkline.delivery.books import MAX_ROWS_LEFT, Leaver

MAX_LEFT: Final = 1000


class Leavers:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int, str], Leaver] = OrderedDict()
        self._rows = 0

    def put(self, origin: int, subscription: int, leaver: Leaver) -> None:
        if origin:
            self.take(origin, subscription, leaver.pattern)
            self._kept[origin, subscription, leaver.pattern] = leaver
            self._rows += leaver.books.size
            while len(self._kept) > MAX_LEFT or (self._rows > MAX_ROWS_LEFT and len(self._kept) > 1):
                self._rows -= self._kept.popitem(last=False)[1].books.size

    def take(self, origin: int, subscription: int, pattern: str) -> Leaver | None:
        """The books of the same subscription on its previous connection, if there was one."""
        leaver = self._kept.pop((origin, subscription, pattern), None)
        if leaver is not None:
            self._rows -= leaver.books.size
        return leaver
