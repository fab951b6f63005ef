"""Which hours a run must rebuild: hours with new messages, and hours whose rows depend on new messages or fates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from trunkline.spark.pipeline.manifest import HOUR, JournalState, hour_of, name_of, truncated
from trunkline.spark.pipeline.placement import GRAIN
from trunkline.spark.settings import PipelineSettings


def horizon_hours(settings: PipelineSettings) -> int:
    return math.ceil(settings.horizon_s / 3600)


def around(state: JournalState, hours: Iterable[str], settings: PipelineSettings) -> list[str]:
    """The given hours, and the hours within the horizon before and after each. Hours without messages are left out."""
    far = horizon_hours(settings)
    wanted = {name_of(hour_of(hour) + step * HOUR) for hour in hours for step in range(-far, far + 1)}
    return sorted(wanted & state.hours.keys())


def by_time(state: JournalState, upto: datetime) -> set[str]:
    """Hours that change as time passes: hours with open requests, the hour of `upto`, and the hour before that."""
    last = truncated(upto)
    return (set(state.open) | {name_of(last), name_of(last - HOUR)}) & state.hours.keys()


def by_fates(state: JournalState, grains: Iterable[tuple[int, int]]) -> set[str]:
    """Hours of the messages to which new fates refer. `grains` are ranges of message numbers in units of GRAIN."""
    ranges = [(low * GRAIN, (high + 1) * GRAIN - 1) for low, high in grains]
    return {hour for hour, span in state.hours.items() if any(span.meets(*each) for each in ranges)}


def by_numbers(state: JournalState, seqs: Iterable[int]) -> set[str]:
    """Hours that may contain these messages."""
    return {hour for seq in seqs for hour, span in state.hours.items() if span.meets(seq, seq)}


class Near:
    """The input needed to build some hours: the surrounding hours, and the ranges of message numbers."""

    def __init__(self, state: JournalState, hours: list[str], settings: PipelineSettings) -> None:
        self.hours = around(state, hours, settings)
        self.wide_hours = around(state, self.hours, settings)
        """The hours around `self.hours`. Messages of `self.hours` can refer to messages in them."""
        self.numbers = _numbers(state, hours)
        # Answers in the surrounding hours can be orphans, too.
        self.wide = _numbers(state, self.hours)


def _numbers(state: JournalState, hours: list[str]) -> tuple[int, int]:
    spans = [state.hours[hour] for hour in hours]
    return min(span.first for span in spans), max(span.last for span in spans)
