"""How a pipeline works."""

from __future__ import annotations

from trunkline.settings import Group


class PipelineSettings(Group, frozen=True, kw_only=True):
    """`watermark_s`: a message is placed by its publisher's clock, unless that is further than this from the journal's.

    `horizon_s`: an answer, a fate or a descendant of a message is looked for so long after it; what comes later is
    counted. `step_rows`: a run that finds more messages than that takes them step by step, each of them for good.
    """

    may_be_zero = frozenset({"watermark_s"})

    watermark_s: float = 3600.0
    horizon_s: float = 3600.0
    request_timeout_s: float = 30.0
    """A request without an answer counts as timed out after this."""
    slow_s: float = 1.0
    """A consumer whose median lag in a minute is above this is slow."""
    step_rows: int = 10_000_000
    tables_at_once: int = 3
    """So many are made at the same time."""
    skip_damaged: bool = False
    """Leave out what cannot be read of the lake, and write down what that was; otherwise the run stops at it."""
