"""Removes what dead processes left behind: first with the engine, then file by file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trunkline.clock import World
from trunkline.errors import MissingExtra
from trunkline.memory.place import engine_root
from trunkline.memory.survey import EngineFile, survey
from trunkline.transports.descriptors import Descriptors


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    removed: list[EngineFile]
    kept: list[EngineFile]
    """Leftovers that could not be removed."""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.removed)


def reap(world: World | None = None) -> Reaped:
    """Remove leftovers. Files of living processes are never removed: see `survey`.

    Raises UsageError if a channel is open.
    """
    before = survey(world)
    if before.left_over:
        _by_the_engine({each.id for each in before.nodes if not each.alive})
    # Surveyed again, to find what the engine did not remove, and new processes.
    for each in survey(world).left_over:
        Path(each.path).unlink(missing_ok=True)
    _remove_empty(engine_root() / "nodes")
    # Listing the descriptors removes those of dead processes.
    Descriptors().all()
    kept = {each.path: each for each in survey(world).left_over}
    return Reaped(removed=[each for each in before.left_over if each.path not in kept], kept=list(kept.values()))


def _by_the_engine(dead: set[str]) -> None:
    """Remove dead nodes with the engine.

    This also removes them from services in use, which removing files does not do.
    """
    try:
        from trunkline.memory.adapter import reap_nodes
    except MissingExtra:
        return
    reap_nodes(dead)


def _remove_empty(folder: Path) -> None:
    for path in folder.glob("*/"):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
