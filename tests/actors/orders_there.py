"""The other module with a class of the same name. Its Order has one field less."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    what: str


class Shared(msgspec.Struct, frozen=True):
    __schema__ = "test.Shared"

    what: str
