"""The counters of producers and consumers, and those that are reported to a bus and its hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from trunkline.wire.reported_metrics import ReportedConsumer, ReportedMetrics

MAX_REPORTED: Final = 8
"""The number of consumers that are reported to a hub, the slowest first. A registration has a size limit."""


class HeldSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that a consumer has not released."""

    seq: int
    held_s: float


class ConsumerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer, from its own counters, or from its last report to the producer."""

    channel: str
    name: str
    pid: int
    wants_every: bool
    reads: int
    overruns: int
    """Frames that were overwritten before it took them."""
    waiting: int
    """Frames that were sent and that it has not taken yet."""
    held: int
    oldest_held: HeldSlot | None
    last_frame_s: float | None = None
    """The age of the last frame it took, from its own counters."""


class ChannelMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One channel, from the counters of its producer."""

    channel: str
    writes: int
    written_bytes: int
    given_up: int
    """The number of loans that ended without sending a frame."""
    cut_off: int
    """Consumers that wanted every frame, and took none for too long."""
    queue: int
    slots: int
    occupancy: float
    """How full the queue of the slowest consumer is, 0 to 1."""
    last_frame_s: float | None
    """The age of the last frame; None before the first."""
    consumers: list[ConsumerMetrics]


class MemoryMetrics(msgspec.Struct, frozen=True):
    """The ends of channels in shared memory that were opened with a bus."""

    producers: list[ChannelMetrics] = []
    consumers: list[ConsumerMetrics] = []


class MemoryEnds:
    """The producers and consumers that were opened with one bus. Their numbers may be read from any thread."""

    def __init__(self) -> None:
        self._producers: dict[object, Callable[[], ChannelMetrics]] = {}
        self._consumers: dict[object, Callable[[], ConsumerMetrics]] = {}

    def add_producer(self, end: object, metrics: Callable[[], ChannelMetrics]) -> None:
        self._producers[end] = metrics

    def add_consumer(self, end: object, metrics: Callable[[], ConsumerMetrics]) -> None:
        self._consumers[end] = metrics

    def remove(self, end: object) -> None:
        self._producers.pop(end, None)
        self._consumers.pop(end, None)

    def metrics(self) -> MemoryMetrics:
        if not self._producers and not self._consumers:
            return _NOTHING
        return MemoryMetrics(
            [count() for count in list(self._producers.values())], [count() for count in list(self._consumers.values())]
        )


_NOTHING: Final = MemoryMetrics()


# Reports to a hub


def report_of_channel(found: ChannelMetrics, at_ns: int, per_s: float) -> ReportedMetrics:
    slowest = sorted(found.consumers, key=lambda each: each.waiting, reverse=True)[:MAX_REPORTED]
    return ReportedMetrics(
        at_ns=at_ns,
        frames=found.writes,
        per_s=round(per_s, 3),
        last_ns=_when(found.last_frame_s, at_ns),
        occupancy=round(found.occupancy, 3),
        overruns=sum(each.overruns for each in found.consumers),
        held=sum(each.held for each in found.consumers),
        cut_off=found.cut_off,
        consumers=len(found.consumers),
        slowest=[
            ReportedConsumer(each.name, each.pid, each.reads, each.overruns, each.waiting, each.held)
            for each in slowest
        ],
    )


def report_of_consumer(found: ConsumerMetrics, at_ns: int, per_s: float) -> ReportedMetrics:
    return ReportedMetrics(
        at_ns=at_ns,
        frames=found.reads,
        per_s=round(per_s, 3),
        last_ns=_when(found.last_frame_s, at_ns),
        overruns=found.overruns,
        held=found.held,
    )


def _when(age_s: float | None, at_ns: int) -> int:
    return 0 if age_s is None else at_ns - int(age_s * 1e9)
