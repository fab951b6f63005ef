"""The settings of a channel in shared memory."""

from __future__ import annotations

import enum

from trunkline.errors import InvalidSettings
from trunkline.settings import Group

MAX_CONSUMERS = 32
"""The number of gating consumers that fit into the header of a frame."""


class Wants(enum.StrEnum):
    """The frames that a consumer gets."""

    LATEST = "latest"
    """Only the latest frame."""
    ALL = "all"
    """All frames in order. If the consumer is slower than the producer, the oldest are overwritten and counted."""
    EVERY = "every"
    """All frames in order, none missing. The producer waits for this consumer until it is cut off."""


class Checksum(enum.StrEnum):
    """Whether frames carry a checksum (XXH3), and when it is compared."""

    NONE = "none"
    ON_DEMAND = "on_demand"
    """Compared by `frame.verify()`."""
    ENFORCED = "enforced"
    """Compared by every consumer, for every frame, when it is received."""


class ChannelSettings(Group, frozen=True, kw_only=True):
    """Set by the producer for all consumers of its channel. More consumers and more held frames need more memory."""

    version: str = ""
    """The version of the schema, such as `1.0.0`."""
    consumers: int = 8
    """The maximum number of consumers, 1 to 32."""
    held: int = 2
    """The maximum number of frames that a consumer may hold."""
    checksum: Checksum = Checksum.NONE
    stuck_s: float = 5.0
    """How long the producer waits for a consumer that wants every frame and takes none.

    Then the consumer is cut off.
    """
    held_too_long_s: float = 5.0
    """A frame that is held for longer than this is logged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consumers > MAX_CONSUMERS:
            raise InvalidSettings(f"ChannelSettings.consumers must be at most {MAX_CONSUMERS}, not {self.consumers}")
