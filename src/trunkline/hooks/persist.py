"""Write each batch to a store before anybody sees it."""

from __future__ import annotations

from typing import Protocol

from trunkline.hooks.hook import Attachment, Batch, Forward, Hook, Stage
from trunkline.topic import EVERYTHING, matches, validate_pattern


class BatchStore(Protocol):
    async def append(self, batch: Batch) -> Batch | None:
        """Return when the batch is safe, with the numbers it has there, if it has any; raise to refuse it."""


class Persist(Hook):
    """A store that has an `attach(bus)`, as the journal, gives numbers and hears what becomes of the messages."""

    stage = Stage.PERSIST

    def __init__(self, store: BatchStore, pattern: str = EVERYTHING) -> None:
        self._store = store
        self._pattern = validate_pattern(pattern)
        self.numbers = hasattr(store, "attach")

    def attach(self, bus: Attachment) -> None:
        if self.numbers:
            self._store.attach(bus, self._pattern)  # type: ignore[attr-defined]  # it has it, as was just seen

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        # A batch has one topic.
        if matches(self._pattern, batch[0].topic):
            batch = await self._store.append(batch) or batch
        await forward(batch)
