"""What a directory is told of the ends of channels in shared memory, in the metadata of their registrations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class ToldConsumer(msgspec.Struct, frozen=True, array_like=True):
    name: str
    pid: int
    reads: int
    overruns: int
    waiting: int
    held: int


class ToldMetrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers of one end, as `metrics` in the metadata of its registration at a hub: every ten seconds."""

    at_ns: int
    frames: int
    """Written by a producer, or read by a consumer."""
    per_s: float
    """Since the numbers before."""
    last_ns: int = 0
    """When the last frame was sent; 0 before the first."""
    occupancy: float = 0.0
    overruns: int = 0
    held: int = 0
    cut_off: int = 0
    consumers: int = 0
    slowest: list[ToldConsumer] = []


def told(metadata: Any) -> ToldMetrics | None:
    """The numbers in the metadata of a registration. Clients write it: what is wrong there counts as none."""
    try:
        return msgspec.convert(metadata["metrics"], ToldMetrics)
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def total(ends: Iterable[ToldMetrics]) -> dict[str, int | float]:
    """Of all producers of a hub."""
    every = list(ends)
    return {
        "producers": len(every),
        "frames": sum(each.frames for each in every),
        "frames_per_s": round(sum(each.per_s for each in every), 1),
        "overruns": sum(each.overruns for each in every),
        "held": sum(each.held for each in every),
        "cut_off": sum(each.cut_off for each in every),
    }
