"""Writes each batch to a store before it is delivered."""

from __future__ import annotations

from typing import Protocol

from trunkline.hooks.hook import Attachment, Batch, Forward, Hook, Stage
from trunkline.topic import EVERYTHING, matches, validate_pattern


class BatchStore(Protocol):
    async def append(self, batch: Batch) -> Batch | None:
        """Store the batch. Returns its numbers in the store, if any; raises an error to refuse it."""


class Persist(Hook):
    """Stores batches before delivery.

    A store with a method `attach(bus)`, such as the journal, also assigns numbers and records fates.
    """

    stage = Stage.PERSIST

    def __init__(self, store: BatchStore, pattern: str = EVERYTHING) -> None:
        self._store = store
        self._pattern = validate_pattern(pattern)
        self.numbers = hasattr(store, "attach")

    def attach(self, bus: Attachment) -> None:
        if self.numbers:
            self._store.attach(bus, self._pattern)  # type: ignore[attr-defined]  # checked above

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        # A batch has one topic.
        if matches(self._pattern, batch[0].topic):
            batch = await self._store.append(batch) or batch
        await forward(batch)
