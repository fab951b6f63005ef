"""The price list of the shop: an actor in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trunkline as tl

PRICES = {"tea": 4.5, "cup": 9.0, "pot": 24.0}


class PriceList(tl.actors.Actor):
    def __init__(self) -> None:
        self.asked = 0

    @tl.actors.handles(str)
    async def price(self, item: str) -> float:
        self.asked += 1
        return PRICES[item]


@asynccontextmanager
async def prices(bus: tl.Bus, name: str) -> AsyncIterator[None]:
    async with tl.actors.ActorSystem(bus, "shop") as system:
        await system.spawn(PriceList, name="prices")
        yield
