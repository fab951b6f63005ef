"""A bus on virtual time, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trunkline as tl
from trunkline.testing import Simulation, simulate, world

T = TypeVar("T")


def on_bus(main: Callable[[tl.Bus], Awaitable[T]], *, seed: int = 0, **options: Any) -> T:
    """Run `main(bus)` on virtual time; when the bus is closed, its books must balance."""

    async def run(simulation: Simulation) -> T:
        async with tl.connect("memory:", world=world(simulation), **options) as bus:
            result = await main(bus)
        for name, account in bus.accounts().items():
            assert account.balanced, (name, account)
        assert bus.stats().account.in_flight == 0
        return result

    return simulate(run, seed=seed)


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Let (virtual) time pass until the condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # time is virtual: waiting costs nothing
            await asyncio.sleep(0.001)
