"""Actors for the tests, and a system of them in virtual time."""

from __future__ import annotations

import os
import signal
import threading
import time
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
    """Has handlers for two kinds of messages, and handles all others without decoding."""

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
    """Keeps its content as saved state."""

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
    """Computes, in its own process."""

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


class Sleepy(Actor):
    """Takes as long as the message says."""

    def receive(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()


class Odd(BaseException):
    """Not an Exception."""


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("cannot be sent")
        self.lock = threading.Lock()


class Echo(Actor):
    async def receive(self, message: Any) -> Any:
        return [self.context.address, message]


class Busybody(Actor):
    """Uses its context as the message says, in a plain `def` handler."""

    def __init__(self, log: list[Any] | None = None, *, word: str = "hello") -> None:
        self.log = [] if log is None else log
        self.word = word
        self.stashed = False

    async def starting(self) -> None:
        await self.context.send("shop.clerk", f"{self.word} from {self.context.address}")

    def receive(self, message: Any) -> Any:
        context = self.context.blocking
        match message:
            case ["ask", to, payload]:
                return context.request(to, payload)
            case ["ask order", order]:
                return context.request("shop.clerk", Placed(order, 10.0), reply=Bill).total
            case ["try", to]:
                return context.try_request(to, "?", timeout_s=0.05)
            case ["tell", to, payload]:
                return len(context.send(to, payload))
            case ["publish", topic, payload]:
                return len(context.publish(topic, payload))
            case ["spawn", name]:
                return context.request(context.spawn(Echo, name=name), "child")
            case ["schedule", key]:
                context.schedule(0.01, "never", key=key)
                context.schedule(0.02, f"rang {key}", key=key)
                timer = context.schedule_at_rate(0.01, "never")
                timer.cancel()
                return timer.active
            case ["watch", address]:
                context.watch(address)
            case ["become"]:
                context.become(self.other)
            case ["stash"] if not self.stashed:
                self.stashed = True
                context.stash()
                context.become(self.other)
            case ["stash"]:
                return "taken up"
            case ["fail", "odd"]:
                raise Odd("strange")
            case ["fail", "unpicklable"]:
                raise Unpicklable
            case ["fail", "unsendable"]:
                return lambda: None
            case ["fail", "key"]:
                raise KeyError("missing")
            case ["reject"]:
                raise tl.Reject("not this")
            case ["log"]:
                return self.log
            case ["in the loop"]:
                self.context.publish("t", 1)
            case ["stop"]:
                self.context.stop()
            case _:
                self.log.append(message)
        return None

    def other(self, message: Any) -> Any:
        self.context.blocking.unbecome()
        self.context.blocking.unstash()
        return ["other", message]

    @handles(Terminated)
    def mourn(self, notice: Terminated) -> None:
        self.log.append(["ended", notice.address])

    async def failed(self, error: BaseException, message: tl.Message | None) -> None:
        what = None if message is None else message.decode()
        await self.context.send("shop.clerk", f"failed: {type(error).__name__} {what}")

    async def stopped(self) -> None:
        await self.context.send("shop.clerk", "stopped")
