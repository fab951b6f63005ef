"""Actors for the tests, and a system of them in virtual time."""

from __future__ import annotations

import os
import signal
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


class Till(Actor):
    """Remembers what is in it."""

    def __init__(self) -> None:
        self.inside: dict[str, int] = {}

    async def receive(self, order: tuple[str, int]) -> int:
        name, amount = order
        if amount < 0:
            self.inside.clear()
            raise ValueError("it is broken into")
        self.inside[name] = self.inside.get(name, 0) + amount
        return sum(self.inside.values())

    def snapshot(self) -> dict[str, int]:
        return self.inside

    def restore(self, state: dict[str, int]) -> None:
        self.inside = state


class Cruncher(Actor):
    """Computes, in a process of its own."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.count = 0

    async def starting(self) -> None:
        if self.base < 0:
            raise ValueError("below zero")

    def receive(self, number: int) -> Any:
        self.count += 1
        match number:
            case 0:
                raise ZeroDivisionError("nothing to divide by")
            case -1:
                os.kill(os.getpid(), signal.SIGKILL)
            case -2:
                self.context.schedule(1, "no")
        return [os.getpid(), self.base // number, self.count]

    @handles(Placed)
    async def place(self, order: Placed) -> Bill:
        await self.context.send("shop.clerk", Bill(order.order, order.total))
        return Bill(order.order, order.total * 2)


@asynccontextmanager
async def shop(simulation: Simulation, **settings: Any) -> AsyncIterator[tuple[tl.Bus, ActorSystem]]:
    async with (
        tl.connect(world=world(simulation)) as bus,
        ActorSystem(bus, "shop", SystemSettings(**settings)) as system,
    ):
        yield bus, system
