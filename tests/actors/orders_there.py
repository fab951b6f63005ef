"""The other one: its Order has a field less."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    what: str


class Shared(msgspec.Struct, frozen=True):
    __schema__ = "test.Shared"

    what: str
