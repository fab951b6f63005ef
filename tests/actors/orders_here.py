"""One of two modules that have a class of the same name."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    what: str
    gift: bool = False


class LargeOrder(Order, frozen=True):
    count: int = 1


class Shared(msgspec.Struct, frozen=True):
    __schema__ = "test.Shared"

    what: str
