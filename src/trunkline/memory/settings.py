"""How a channel in shared memory behaves."""

from __future__ import annotations

import enum

from trunkline.errors import InvalidSettings
from trunkline.settings import Group

MAX_CONSUMERS = 32
"""The header of a frame has room for so many who gate the producer."""


class Wants(enum.StrEnum):
    """Which frames a consumer gets."""

    LATEST = "latest"
    """The latest only."""
    ALL = "all"
    """All in order; if the consumer is slower than the producer, the oldest are overrun, and counted."""
    EVERY = "every"
    """All in order, none missing: the producer waits for this consumer, until it is cut off."""


class Checksum(enum.StrEnum):
    """Whether frames carry a checksum (XXH3), and when it is compared."""

    NONE = "none"
    ON_DEMAND = "on_demand"
    """By `frame.verify()`."""
    ENFORCED = "enforced"
    """By every consumer, for every frame, when it is received."""


class ChannelSettings(Group, frozen=True, kw_only=True):
    """The producer's choice, for all consumers of its channel. More consumers, and more held, need more memory."""

    version: str = ""
    """The version of the schema, as people call it: `1.0.0`."""
    consumers: int = 8
    """How many there may be at once, 1 to 32."""
    held: int = 2
    """How many frames a consumer may hold at once."""
    checksum: Checksum = Checksum.NONE
    stuck_s: float = 5.0
    """So long the producer waits for a consumer that wants every frame and takes none; then it is cut off."""
    held_too_long_s: float = 5.0
    """A frame that is held for longer is reported in the log."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consumers > MAX_CONSUMERS:
            raise InvalidSettings(f"ChannelSettings.consumers must be at most {MAX_CONSUMERS}, not {self.consumers}")
