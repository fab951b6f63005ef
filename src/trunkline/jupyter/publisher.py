"""Publishes a kernel's traffic on the bus: all requests and messages, in order, on its own topics."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from trunkline.errors import PartlyRefused, TrunklineError
from trunkline.jupyter.wire import KernelMessage
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

log = logging.getLogger("trunkline.jupyter")

GATEWAY: Final = "kernel-gateway"
"""The header of requests that their publisher has already sent to the kernel."""
MAX_BATCH: Final = 1000


class KernelPublisher:
    """Publishes in its own task: neither the kernel nor its requests wait for the bus.

    Consecutive messages on one topic form one batch. The next topic waits for it, so that the stored order is the order
    of the kernel, too.
    """

    def __init__(self, bus: Bus, session: str, max_waiting: int) -> None:
        self._bus = bus
        self._headers = {GATEWAY: session}
        self._max_waiting = max_waiting
        self._waiting: deque[Message] = deque()
        self._task: asyncio.Task[None] | None = None
        self.published = 0
        self.lost = 0
        """The number of messages that were not published, because the bus rejected them or was too slow."""

    def put(self, message: KernelMessage, trace: str | None = None) -> None:
        if len(self._waiting) >= self._max_waiting:
            self._lose(1, f"{self._max_waiting} messages already wait for the bus")
            return
        self._waiting.append(message.plain(self._bus.name, self._headers, trace))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._publish())

    async def _publish(self) -> None:
        waiting = self._waiting
        while waiting:
            first = waiting.popleft()
            batch = [first]
            while (
                waiting
                and len(batch) < MAX_BATCH
                and waiting[0].topic == first.topic
                and waiting[0].priority == first.priority
            ):
                batch.append(waiting.popleft())
            try:
                await self._bus.post_many(batch)
            except PartlyRefused as error:
                self.published += len(batch) - len(error.refused)
                self._lose(len(error.refused), str(error))
            except TrunklineError as error:
                self._lose(len(batch), str(error))
            else:
                self.published += len(batch)

    def _lose(self, count: int, why: str) -> None:
        if not self.lost:
            log.warning("messages of a kernel no longer reach the bus (counted in stats): %s", why)
        self.lost += count

    async def aclose(self) -> None:
        """Wait until everything is published or lost."""
        if self._task is not None:
            await self._task
