"""Handing out what is stored to those who listen now. Where a full inbox says `block`, the rest waits in line.

Publishers are told when their messages are through, so a slow subscriber slows them down, and nobody is passed over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from trunkline.delivery.route import Route, Unsettled, offer
from trunkline.errors import BackpressureTimeout, Congested, Refused, StreamClosed
from trunkline.journal.intake import Pending
from trunkline.settings import Backpressure

GIVEN_UP = "its publisher was cancelled while waiting for room"


class HandOut:
    def __init__(
        self, resolve: Callable[[str], Route], limits: Backpressure, through: Callable[[Pending], None]
    ) -> None:
        self._resolve = resolve
        self._limits = limits
        self._through = through
        """Called with what is with everybody, or refused by some."""
        self._lines: dict[str, deque[Pending]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def waits(self, topic: str) -> bool:
        """Whether some of a topic wait in line: nobody may pass them."""
        return topic in self._lines

    def give(self, pending: Pending) -> None:
        """Offer messages to all who listen, in order; those behind one that must wait, wait in line."""
        line = self._lines.get(pending.topic)
        if line is not None:
            line.append(pending)
            return
        stopped = self._offer(pending, 0)
        if stopped is None:
            self._through(pending)
            return
        self._lines[pending.topic] = deque([pending])
        task = asyncio.get_running_loop().create_task(
            self._go_on(pending.topic, stopped), name=f"hand out {pending.topic}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _offer(self, pending: Pending, start: int) -> tuple[int, Unsettled] | None:
        """Offer from `start` on; where somebody has to wait, that place and what is left to do there."""
        try:
            route = self._resolve(pending.topic)
        except StreamClosed:
            return None
        for index in range(start, len(pending.messages)):
            message = pending.messages[index]
            route.published += 1
            unsettled = offer(message, route.sinks)
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
                self._through(pending)
                stopped = self._offer(line[0], 0) if line else None
        finally:
            del self._lines[topic]
            for pending in line:
                # Only when the broker closes: they are stored.
                self._through(pending)

    async def _settle(self, pending: Pending, index: int, unsettled: Unsettled, hopeless: bool) -> bool:
        """Wait for room, unless one before waited in vain: the rest would wait as long, with as little hope."""
        message = pending.messages[index]
        waiter = pending.waiter_of(index)
        if hopeless or waiter.gone:
            _drop(unsettled, "one before it waited in vain" if hopeless else GIVEN_UP)
            if hopeless:
                pending.failures.append((message, pending.failures[-1][1]))
            return hopeless
        waiter.when_gone(lambda: _drop(unsettled, GIVEN_UP))
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


def _drop(unsettled: Unsettled, why: str) -> None:
    """Let go of the places where a message waits for room."""
    for parked in unsettled.waiting:
        parked.inbox.unpark(parked, why)
