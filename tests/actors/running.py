"""Tests of actors in real time: with threads, processes, a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

DEADLINE_S = 120.0


def run(main: Coroutine[Any, Any, None]) -> None:
    async def soon() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main

    asyncio.run(soon())
