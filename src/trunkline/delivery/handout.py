"""Handing messages to subscribers on behalf of publishers that do not call it: a journal, or a client of the hub.

Where a full inbox has the policy `block`, later messages of the topic wait in line. Publishers learn when their
messages have been handed out, so a slow subscriber slows them down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from trunkline.delivery.batch import Batch
from trunkline.delivery.pending import HandedBatch
from trunkline.delivery.route import Route, Sink, Tap, Unsettled, offer
from trunkline.errors import BackpressureTimeout, Congested, Refused, StreamClosed
from trunkline.settings import Backpressure

GIVEN_UP = "its publisher was cancelled while waiting for room"


class HandOut:
    def __init__(self, resolve: Callable[[str], Route], limits: Backpressure) -> None:
        self._resolve = resolve
        self._limits = limits
        self._lines: dict[str, deque[HandedBatch]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def waits(self, topic: str) -> bool:
        """Whether some of a topic wait in line: nobody may pass them."""
        return topic in self._lines

    def give(self, pending: HandedBatch) -> None:
        """Offer messages to all who listen, in order; those behind one that must wait, wait in line."""
        line = self._lines.get(pending.topic)
        if line is not None:
            line.append(pending)
            return
        stopped = self._offer(pending, 0)
        if stopped is None:
            pending.settle(pending.failures)
            return
        self._lines[pending.topic] = deque([pending])
        task = asyncio.get_running_loop().create_task(
            self._go_on(pending.topic, stopped), name=f"hand out {pending.topic}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _offer(self, pending: HandedBatch, start: int) -> tuple[int, Unsettled] | None:
        """Offer from `start` on; where somebody has to wait, that place and what is left to do there."""
        try:
            route = self._resolve(pending.topic)
        except StreamClosed:
            return None
        for index in range(start, len(pending.messages)):
            message = pending.messages[index]
            unsettled = offer(message, sinks_for(route, pending, index))
            if unsettled is None:
                continue
            if unsettled.waiting:
                return index, unsettled
            pending.failures.append((message, unsettled.refused[0]))
        return None

    async def _go_on(self, topic: str, stopped: tuple[int, Unsettled] | None) -> None:
        line = self._lines[topic]
        try:
            while line:
                pending = line[0]
                hopeless = False
                while stopped is not None:
                    index, unsettled = stopped
                    hopeless = await self._settle(pending, index, unsettled, hopeless)
                    stopped = self._offer(pending, index + 1)
                line.popleft()
                pending.settle(pending.failures)
                stopped = self._offer(line[0], 0) if line else None
        finally:
            del self._lines[topic]
            for pending in line:
                # Only when the broker closes: they are stored.
                pending.settle(pending.failures)

    async def _settle(self, pending: HandedBatch, index: int, unsettled: Unsettled, hopeless: bool) -> bool:
        """Wait for room, unless one before waited in vain: the rest would wait as long, with as little hope."""
        message = pending.messages[index]
        waiter = pending.waiter_of(index)
        if hopeless or waiter.gone:
            unsettled.drop("one before it waited in vain" if hopeless else GIVEN_UP)
            if hopeless:
                pending.failures.append((message, pending.failures[-1][1]))
            return hopeless
        waiter.when_gone(lambda: unsettled.drop(GIVEN_UP))
        try:
            await unsettled.settle(self._limits)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # Its publisher has gone: it was dropped where it still waited.
        except (BackpressureTimeout, Congested) as error:
            pending.failures.append((message, error))
            return True
        except Refused as error:
            pending.failures.append((message, error))
        return False

    async def aclose(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sinks_for(route: Route, pending: HandedBatch, index: int) -> Iterable[Sink | Tap]:
    """Who is offered a message of a pending batch: one from a batch goes to outlets with its batch, unopened."""
    if route.outlets and pending.batches and isinstance(pending.waiter_of(index).owner, Batch):
        return route.local
    return route.sinks
