"""Batches that a client sends again, because its connection ended before they were confirmed.

A batch is stored completely or not at all. A repeated batch may be stored already, or be about to be. The reading
thread looks for it, and later batches on its topic wait until the result is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from trunkline.delivery.batch import Batch
from trunkline.delivery.dead_letters import describe
from trunkline.journal.intake import Intake
from trunkline.message import Message

log = logging.getLogger("trunkline.journal")

Find = Callable[[str], Awaitable[Message | None]]
"""Finds a stored message by its id without blocking the event loop."""
Put = Callable[[Batch, list[Message]], None]


class RepeatedBatches:
    def __init__(self, intake: Intake, find: Find, put: Put) -> None:
        self._intake = intake
        self._find = find
        self._put = put
        self.lines: dict[str, deque[tuple[Batch, list[Message]]]] = {}
        """By topic: batches that wait for the lookup, and later ones."""
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, batch: Batch, messages: list[Message]) -> None:
        """Take a repeated batch, or one on a topic where others wait."""
        line = self.lines.get(batch.topic)
        if line is None:
            line = self.lines[batch.topic] = deque()
            task = asyncio.get_running_loop().create_task(self._work(batch.topic, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        line.append((batch, messages))

    async def _work(self, topic: str, line: deque[tuple[Batch, list[Message]]]) -> None:
        try:
            while line:
                batch, messages = line[0]
                if not batch.again or not await self._is_known(batch, messages[0].id):
                    self._put(batch, messages)
                line.popleft()
        finally:
            del self.lines[topic]

    async def _is_known(self, batch: Batch, first_id: str) -> bool:
        """Whether it is stored, or being stored. Then its publisher gets its number."""
        if (storing := self._intake.storing(batch.topic, first_id)) is not None:
            storing.take_over(batch)
            return True
        try:
            known = await self._find(first_id)
        except Exception as error:
            log.error(
                "cannot check whether a repeated batch is already stored, so it may be stored twice: %s",
                describe(error),
            )
            return False
        if known is None or known.topic != batch.topic:
            return False
        batch.first = known.seq
        batch.done()
        return True

    async def aclose(self) -> None:
        """Stop. Waiting batches are not stored now; their publishers get no answer whether they are stored."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
