"""Damage in a journal that is read with Spark: an error with the next step, or skipped and reported."""

from __future__ import annotations

import logging
from pathlib import Path

from trunkline.errors import JournalDamaged
from trunkline.journal.reader import Damage

log = logging.getLogger("trunkline.spark")


def handler(directory: Path, *, skip: bool, on_skip: Damage | None = None) -> Damage:
    """The handler of damage in a journal. Skipped parts are reported, by default in the log."""

    def refuse(damage: JournalDamaged) -> None:
        why = f"{damage.why} (`trunkline journal verify {directory}` checks all; skip_damaged skips damaged parts)"
        raise JournalDamaged(damage.first, damage.last, damage.where, why) from damage

    return (on_skip or _log) if skip else refuse


def _log(damage: JournalDamaged) -> None:
    log.error("skipped: %s", damage)
