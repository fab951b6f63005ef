"""Errors of shared-memory channels. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.errors import TrunklineError, UsageError
from trunkline.plural import counted


class WrongProcess(UsageError):
    """The object was opened before a fork. The child must not use it, because that would destroy data of the parent."""

    def __init__(self, channel: str, opened_by: int) -> None:
        super().__init__(
            f"{channel!r} was opened in process {opened_by}, the parent of this forked process: "
            "open it again in this process"
        )
        self.channel = channel
        self.opened_by = opened_by


class SharedMemoryError(TrunklineError):
    """An error of a channel in shared memory."""


class SharedMemoryFull(SharedMemoryError):
    retryable = True

    def __init__(self, channel: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"{channel!r} needs {needed_bytes:,} bytes of shared memory, and {free_bytes:,} are free: lower capacity, "
            "page_size or the settings `consumers` and `held`, enlarge /dev/shm, or see `trunkline doctor`"
        )
        self.channel = channel
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class NoProducer(SharedMemoryError):
    retryable = True

    def __init__(self, channel: str) -> None:
        super().__init__(f"{channel!r} has no producer on this machine: start the producer first")
        self.channel = channel


class ProducerGone(SharedMemoryError):
    """The producer has ended, and all its frames were received.

    The consumer stays attached: the next `recv` waits for another producer.
    """

    retryable = True

    def __init__(self, channel: str, *, died: bool) -> None:
        super().__init__(f"the producer of {channel!r} {'died' if died else 'has closed the channel'}")
        self.channel = channel
        self.died = died


class LayoutMismatch(SharedMemoryError):
    """`differences` names the fields. The text has both versions."""

    def __init__(self, channel: str, expected: str, found: str, differences: Sequence[str]) -> None:
        what = "; ".join(differences) or "their hashes differ, and the channel does not hold its whole schema"
        super().__init__(
            f"{channel!r} has another schema: expected is {expected}, the channel has {found}. Different: {what}"
        )
        self.channel = channel
        self.expected = expected
        self.found = found
        self.differences = tuple(differences)


class TooManyConsumers(SharedMemoryError):
    retryable = True

    def __init__(self, channel: str, limit: int) -> None:
        super().__init__(
            f"{channel!r} has {counted(limit, 'consumer')}, which is its limit: "
            "raise `consumers` in the settings of its producer"
        )
        self.channel = channel
        self.limit = limit


class SlotsHeld(SharedMemoryError):
    """The consumer holds as many frames as it may. `oldest` is the number of the one that it has held longest."""

    retryable = True

    def __init__(self, channel: str, held: int, oldest: int, oldest_s: float) -> None:
        super().__init__(
            f"this consumer of {channel!r} holds {counted(held, 'frame')}, which is its limit; frame {oldest} for "
            f"{oldest_s:.3g} s: release frames and drop their views, or raise `held` in the settings of the producer"
        )
        self.channel = channel
        self.held = held
        self.oldest = oldest
        self.oldest_s = oldest_s


class FrameDamaged(SharedMemoryError):
    def __init__(self, channel: str, seq: int) -> None:
        super().__init__(f"frame {seq} of {channel!r} differs from what was written: its checksum does not match")
        self.channel = channel
        self.seq = seq


class CutOff(SharedMemoryError):
    """The producer stopped waiting for this consumer, which took nothing for too long."""

    def __init__(self, channel: str, after: int) -> None:
        super().__init__(
            f"the producer of {channel!r} stopped waiting for this consumer after frame {after}: open another "
            "consumer, and receive faster or raise `stuck_s` in the settings of the producer"
        )
        self.channel = channel
        self.after = after
