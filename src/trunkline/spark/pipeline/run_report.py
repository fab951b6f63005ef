"""The result of a run of the pipeline."""

from __future__ import annotations

from typing import NamedTuple


class RunReport(NamedTuple):
    run: int
    """The number of the last run that did something."""
    messages: int
    fates: int
    hours: list[str]
    late: int
    duplicates: int
    steps: int
    """0 if there was nothing new."""
