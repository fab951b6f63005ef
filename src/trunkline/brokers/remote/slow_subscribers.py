"""What publishers wait for: when a publish has waited for a second, the broker is asked whose inbox is full.

With NATS and Redis a subscriber cannot slow down a publisher, so the publisher waits for the server itself.
"""

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
        self._waits_for_broker = False
        """Whether there was a warning, and no publish has gone on since."""

    async def wait(self, lane: RemoteLane, awaited: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for room, or for confirmation. False if there was none in time."""
        patience_s = min(WARN_AFTER_S, timeout_s)
        await asyncio.wait([awaited], timeout=patience_s)
        if awaited.done() or timeout_s <= patience_s:
            return awaited.done()
        if self._adapter.live and self._adapter.names_full:
            lane.asks_who_is_full = True
            self._adapter.inquire_soon(lane.topic)
        elif not self._waits_for_broker:
            self._waits_for_broker = True
            self._warn_of_broker(lane)
        await asyncio.wait([awaited], timeout=timeout_s - patience_s)
        if awaited.done():
            self._waits_for_broker = False
        return awaited.done()

    def _warn_of_broker(self, lane: RemoteLane) -> None:
        adapter = self._adapter
        missing = "has not confirmed earlier messages" if adapter.live else "is not connected"
        log.warning("a publish on %s has waited %g s because %s %s", lane.topic, WARN_AFTER_S, adapter.url, missing)

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
