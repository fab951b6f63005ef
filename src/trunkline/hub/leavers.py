"""Leavers: subscriptions whose connection has ended. Their client may come again, and say what became of messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from trunkline.delivery.books import Leaver

MAX_LEFT: Final = 1000


class Leavers:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int, str], Leaver] = OrderedDict()

    def put(self, origin: int, subscription: int, leaver: Leaver) -> None:
        if origin:
            self._kept[origin, subscription, leaver.pattern] = leaver
            if len(self._kept) > MAX_LEFT:
                self._kept.popitem(last=False)

    def take(self, origin: int, subscription: int, pattern: str) -> Leaver | None:
        """The same subscription on its last connection, if it was here."""
        return self._kept.pop((origin, subscription, pattern), None)
