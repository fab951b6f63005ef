"""Payloads that say when they were made, on the clock that all processes of a machine share."""

from __future__ import annotations

import time

from benchmarks.durable import PAYLOAD_BYTES

EVERY_S = 0.004
_TIME_BYTES = 8
_REST = bytes(PAYLOAD_BYTES - _TIME_BYTES)


def stamped() -> bytes:
    return time.monotonic_ns().to_bytes(_TIME_BYTES) + _REST


def age_ns(payload: bytes) -> int:
    return time.monotonic_ns() - int.from_bytes(payload[:_TIME_BYTES])
