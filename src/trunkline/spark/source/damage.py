"""Damage, as somebody who reads with Spark meets it: an error that says the next step, or left out and told."""

from __future__ import annotations

import logging
from pathlib import Path

from trunkline.errors import JournalDamaged
from trunkline.journal.reader import Damage

log = logging.getLogger("trunkline.spark")


def handler(directory: Path, *, skip: bool, on_skip: Damage | None = None) -> Damage:
    """What to do about damage of a journal. If it is left out, it is told, by default in the log."""

    def refuse(damage: JournalDamaged) -> None:
        why = f"{damage.why} (`trunkline journal verify {directory}` checks all; skip_damaged leaves out what is bad)"
        raise JournalDamaged(damage.first, damage.last, damage.where, why) from damage

    return (on_skip or _log) if skip else refuse


def _log(damage: JournalDamaged) -> None:
    log.error("skipped: %s", damage)
