"""Payloads with the time of their creation, on a clock that all processes of a machine share; and a rate limiter."""

from __future__ import annotations

import asyncio
import time

from benchmarks.durable import PAYLOAD_BYTES

EVERY_S = 0.004
PACED = 500
"""The number of messages at a time, if the rate is limited."""
_TIME_BYTES = 8
_REST = bytes(PAYLOAD_BYTES - _TIME_BYTES)


def stamped() -> bytes:
    return time.monotonic_ns().to_bytes(_TIME_BYTES) + _REST


def age_ns(payload: bytes) -> int:
    return time.monotonic_ns() - int.from_bytes(payload[:_TIME_BYTES])


class Pace:
    """Limits the rate to `per_s` messages per second. Without a limit, it only yields to the event loop."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._due_s = time.monotonic()

    async def after(self, count: int) -> None:
        """Call after `count` messages: waits until the next ones are due. Delays are not made up for."""
        if self._per_s is None:
            await asyncio.sleep(0)
            return
        now_s = time.monotonic()
        self._due_s = max(self._due_s + count / self._per_s, now_s)
        await asyncio.sleep(self._due_s - now_s)
