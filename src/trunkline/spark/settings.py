"""The settings of a pipeline."""

from __future__ import annotations

from trunkline.errors import InvalidSettings
from trunkline.settings import Group


class PipelineSettings(Group, frozen=True, kw_only=True):
    """`watermark_s`: a message is placed by its publisher's clock, unless that differs from the journal's by more than
    this.

    `horizon_s`: an answer, a fate or a descendant of a message is searched for up to this long before and after it;
    later ones are only counted. `step_rows`: a run with more new messages than this processes them in steps, and
    commits each step.
    """

    may_be_zero = frozenset({"watermark_s", "grace_s", "few_rows"})

    watermark_s: float = 3600.0
    horizon_s: float = 3600.0
    request_timeout_s: float = 30.0
    """A request without an answer counts as timed out after this."""
    slow_s: float = 1.0
    """A consumer whose median lag in a minute is above this is slow."""
    step_rows: int = 10_000_000
    delta: bool | None = None
    """Keep a Delta log beside each table, and beside the sealed files of the journal; None: as it was before."""
    grace_s: float = 3600.0
    """Replaced files are kept for this long, so that running queries can finish."""
    keep_s: float | None = None
    """Hours that end longer than this before the end of the stream are removed from all tables; None: none are."""
    tables_at_once: int = 3
    """The number of tables that are built in parallel."""
    skip_damaged: bool = False
    """Skip unreadable parts of the lake, and record them. Otherwise the run stops there."""
    few_rows: int = 50_000
    """Up to this many messages are processed by the driver itself, with the same result in less time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_s is not None and self.keep_s < self.changing_s:
            raise InvalidSettings(
                f"PipelineSettings.keep_s must be at least {self.changing_s:g}, the watermark and twice the horizon,"
                f" not {self.keep_s:g}: hours before that still change"
            )

    @property
    def changing_s(self) -> float:
        """Hours that end less than this before the end of the stream may still change: these are kept."""
        return self.watermark_s + 2 * self.horizon_s
