"""Hands out messages to subscribers for publishers that do not do it themselves: a journal, or a client of the hub.

While a message waits for a full inbox with the policy `block`, later messages of its topic wait in line. Publishers are
notified when their messages have been handed out, so a slow subscriber slows them down.
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
        """Whether messages of a topic wait in line. Later ones must not overtake them."""
        return topic in self._lines

    def give(self, pending: HandedBatch) -> None:
        """Offer messages to all subscribers, in order. If one has to wait for room, those after it wait in line."""
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
        """Offer the messages from `start` on. If one has to wait, returns its index and an Unsettled for it."""
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
                # Reached only when the broker closes. These messages are stored.
                pending.settle(pending.failures)

    async def _settle(self, pending: HandedBatch, index: int, unsettled: Unsettled, hopeless: bool) -> bool:
        """Wait for room, unless an earlier message of the batch got no room in time: each later one would wait as long.
        Returns whether this message or an earlier one got no room in time.
        """
        message = pending.messages[index]
        waiter = pending.waiter_of(index)
        if hopeless or waiter.gone:
            unsettled.drop("an earlier message of the batch got no room" if hopeless else GIVEN_UP)
            if hopeless:
                pending.failures.append((message, pending.failures[-1][1]))
            return hopeless
        waiter.when_gone(lambda: unsettled.drop(GIVEN_UP))
        try:
            await unsettled.settle(self._limits)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # The publisher is gone: the message was dropped where it still waited.
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
    """The sinks that are offered a message of a pending batch. The messages of a routed batch go to outlets as that
    batch, unopened.
    """
    if route.outlets and pending.batches and isinstance(pending.waiter_of(index).owner, Batch):
        return route.local
    return route.sinks
