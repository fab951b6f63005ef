"""Write each batch to a store before anybody sees it."""

from __future__ import annotations

from typing import Protocol

from trunkline.hooks.hook import Batch, Forward, Stage
from trunkline.topic import EVERYTHING, matches, validate_pattern


class Store(Protocol):
    async def append(self, batch: Batch) -> None:
        """Return when the batch is safe; raise to refuse it."""


class Persist:
    stage = Stage.PERSIST

    def __init__(self, store: Store, pattern: str = EVERYTHING) -> None:
        self._store = store
        self._pattern = validate_pattern(pattern)

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        # A batch has one topic.
        if matches(self._pattern, batch[0].topic):
            await self._store.append(batch)
        await forward(batch)
