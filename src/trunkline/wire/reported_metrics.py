"""Metrics of producers and consumers of channels in shared memory, in the metadata of their registrations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class ReportedConsumer(msgspec.Struct, frozen=True, array_like=True):
    name: str
    pid: int
    reads: int
    overruns: int
    waiting: int
    held: int


class ReportedMetrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metrics of one producer or consumer, as `metrics` in the metadata of its registration at a hub.

    Sent every ten seconds.
    """

    at_ns: int
    frames: int
    """Written by a producer, or read by a consumer."""
    per_s: float
    """The rate since the previous report."""
    last_ns: int = 0
    """When the last frame was sent; 0 before the first."""
    occupancy: float = 0.0
    overruns: int = 0
    held: int = 0
    cut_off: int = 0
    consumers: int = 0
    slowest: list[ReportedConsumer] = []


def read_metrics(metadata: Any) -> ReportedMetrics | None:
    """The metrics in the metadata of a registration. None if they are missing or invalid: clients write them."""
    try:
        return msgspec.convert(metadata["metrics"], ReportedMetrics)
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def total(ends: Iterable[ReportedMetrics]) -> dict[str, int | float]:
    """The totals of all producers of a hub."""
    every = list(ends)
    return {
        "producers": len(every),
        "frames": sum(each.frames for each in every),
        "frames_per_s": round(sum(each.per_s for each in every), 1),
        "overruns": sum(each.overruns for each in every),
        "held": sum(each.held for each in every),
        "cut_off": sum(each.cut_off for each in every),
    }
