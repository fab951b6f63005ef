"""The results of verifying and repairing: what is damaged, what was checked, what is lost."""

from __future__ import annotations

import msgspec

Span = tuple[int, int]
"""Two numbers of messages, the first and the last."""


class Finding(msgspec.Struct, frozen=True):
    """A part that differs from what was written. The numbers are 0 if no messages are affected."""

    where: str
    why: str
    first: int = 0
    last: int = 0


class Verified(msgspec.Struct, frozen=True):
    """What was checked, in one snapshot, and the faults."""

    batches: int = 0
    messages: int = 0
    files: int = 0
    sealed_messages: int = 0
    sealed_fates: int = 0
    quarantined: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def good(self) -> bool:
        return not self.findings


class Repaired(msgspec.Struct, frozen=True):
    """The result of a repair: lost messages by number, and parts that were moved aside."""

    lost: tuple[Finding, ...]
    aside: tuple[str, ...]
