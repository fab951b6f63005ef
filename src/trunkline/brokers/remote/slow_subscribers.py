"""Which subscribers elsewhere make publishers wait: the broker is asked when a publish has waited for a second."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from trunkline.brokers.remote.adapter import Adapter, TopicTerms
from trunkline.brokers.remote.lane import RemoteLane
from trunkline.delivery.subscriber import WARN_AFTER_S, warn_of_waiting

log = logging.getLogger("trunkline.connection")

MAX_REMEMBERED = 1000


class SlowSubscribers:
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._warned: dict[str, int] = {}
        """By name: how often it had become full when there was a warning last."""

    async def wait(self, lane: RemoteLane, awaited: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for room, or for confirmation. False if there was none in time."""
        patience_s = min(WARN_AFTER_S, timeout_s)
        await asyncio.wait([awaited], timeout=patience_s)
        if awaited.done() or timeout_s <= patience_s:
            return awaited.done()
        if self._adapter.live:
            lane.asks_who_is_full = True
            self._adapter.inquire_soon(lane.topic)
        await asyncio.wait([awaited], timeout=timeout_s - patience_s)
        return awaited.done()

    def learn(self, lane: RemoteLane, terms: TopicTerms) -> None:
        if not lane.asks_who_is_full:
            return
        lane.asks_who_is_full = False
        for name, times in terms.full:
            if self._warned.get(name) != times:
                self._warned.pop(name, None)
                self._warned[name] = times
                warn_of_waiting(log, lane.topic, name)
        while len(self._warned) > MAX_REMEMBERED:
            del self._warned[next(iter(self._warned))]
