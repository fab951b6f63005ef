"""What the two ends of a channel count."""

from __future__ import annotations

import msgspec


class HeldSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that a consumer has not released."""

    seq: int
    held_s: float


class ConsumerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer, as it counts itself, or as it last reported to the producer."""

    name: str
    pid: int
    wants_every: bool
    reads: int
    overruns: int
    """Frames that were overwritten before it took them."""
    waiting: int
    """Frames that were sent and that it has not taken: its place in the queue."""
    held: int
    oldest_held: HeldSlot | None
    last_frame_s: float | None = None
    """The age of the last frame it took, as it counts itself."""


class ChannelMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One channel, as its producer counts."""

    channel: str
    writes: int
    written_bytes: int
    given_up: int
    """Loans that ended without a frame."""
    cut_off: int
    """Consumers that wanted every frame, and took none for too long."""
    queue: int
    slots: int
    occupancy: float
    """How full the queue of the slowest consumer is, 0 to 1."""
    last_frame_s: float | None
    """The age of the last frame; None before the first."""
    consumers: list[ConsumerMetrics]
