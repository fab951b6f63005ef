"""Warnings about publishes that wait: after a second, the log names the subscribers whose inboxes are full.

With NATS and Redis a subscriber cannot slow down a publisher. A publish that waits there waits for the server, and the
log names the server.
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
        """By subscriber: how often its inbox had become full at the last warning."""
        self._waits_for_broker = False
        """Whether a warning about the broker was logged, and no publish that waited has continued since."""

    async def wait(self, lane: RemoteLane, awaited: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for room or for confirmation. Returns False after the timeout."""
        patience_s = min(WARN_AFTER_S, timeout_s)
        await asyncio.wait([awaited], timeout=patience_s)
        if awaited.done() or timeout_s <= patience_s:
            return awaited.done()
        if self._adapter.live and self._adapter.names_full:
            lane.asks_who_is_full = True
            self._adapter.inquire_soon(lane.topic)
        else:
            self._warn_of_broker(lane, "has not confirmed earlier messages")
        await asyncio.wait([awaited], timeout=timeout_s - patience_s)
        if awaited.done():
            self._waits_for_broker = False
        return awaited.done()

    async def inquire(self, lane: RemoteLane) -> None:
        """Request the terms of a topic, which its first publish needs."""
        loop = asyncio.get_running_loop()
        warning = loop.call_later(
            WARN_AFTER_S, self._warn_of_broker, lane, "has not answered the query about the topic"
        )
        try:
            await self._adapter.inquire(lane.topic)
            if warning.when() <= loop.time():
                self._waits_for_broker = False
        finally:
            warning.cancel()

    def _warn_of_broker(self, lane: RemoteLane, missing: str) -> None:
        """Log that a publish has waited for WARN_AFTER_S. Logged once, until a publish that waited has continued."""
        if self._waits_for_broker:
            return
        self._waits_for_broker = True
        url, why = self._adapter.url, missing if self._adapter.live else "is not connected"
        log.warning("a publish on %s has waited %g s because %s %s", lane.topic, WARN_AFTER_S, url, why)

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
