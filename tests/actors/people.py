"""Actors for the tests, and a system of them in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

import trunkline as tl
from trunkline.actors import Actor, ActorSystem, SystemSettings, Terminated, handles
from trunkline.testing import Simulation, world


class Placed(msgspec.Struct, frozen=True):
    order: str
    total: float = 0.0


class Cancelled(msgspec.Struct, frozen=True):
    order: str


class Bill(msgspec.Struct, frozen=True):
    order: str
    total: float


class Clerk(Actor):
    """Knows two kinds of messages, and takes all others as they are."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    async def starting(self) -> None:
        self.log.append("starting")

    @handles(Placed)
    async def place(self, order: Placed) -> Bill:
        self.log.append(order)
        return Bill(order.order, order.total * 1.2)

    @handles()
    async def cancel(self, order: Cancelled) -> None:
        self.log.append(order)

    @handles(Terminated)
    async def mourn(self, notice: Terminated) -> None:
        self.log.append(notice)

    async def receive(self, message: Any) -> Any:
        if isinstance(message, dict) and "fail" in message:
            raise ValueError(message["fail"])
        self.log.append(message)
        return message

    async def failed(self, error: BaseException, message: tl.Message | None) -> None:
        self.log.append(f"failed: {error}")

    async def stopped(self) -> None:
        self.log.append("stopped")


@asynccontextmanager
async def shop(simulation: Simulation, **settings: Any) -> AsyncIterator[tuple[tl.Bus, ActorSystem]]:
    async with (
        tl.connect(world=world(simulation)) as bus,
        ActorSystem(bus, "shop", SystemSettings(**settings)) as system,
    ):
        yield bus, system
