"""The agents of the shop, each in its own process: `python -m examples.demo.agents NAME ADDRESS`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import trunkline as tl
from examples.demo.actors import prices

RATES = {"EUR": 1.0, "USD": 0.9}
ITEMS = ("tea", "cup", "pot")


@dataclass
class Order:
    number: int
    item: str
    total: float
    currency: str = "EUR"


@dataclass
class Invoice:
    order: int
    euros: float
    by: str


@dataclass
class Look:
    """The orders on the dashboard, and the number of orders that it dropped, by its own count."""

    shown: list[int]
    dropped: int


@dataclass
class MeanOf:
    """A task for the analyst: the mean of a number of invoices, computed by this kernel."""

    invoices: int
    kernel: str


@dataclass
class Mean:
    """The result of the kernel, and the numbers of accepted and filtered invoices, by the analyst's own count."""

    euros: str
    taken: int
    filtered: int


@asynccontextmanager
async def desk(bus: tl.Bus, name: str) -> AsyncIterator[None]:
    """Takes orders: asks the actor for the price, then publishes. The order is on the hub's disk when that returns."""

    @bus.on("desk.place")
    async def place(numbers: list[int]) -> list[str]:
        ids = []
        for number in numbers:
            item = ITEMS[number % len(ITEMS)]
            price = await bus.request("_to.shop.prices", item, reply=float)
            ids.append(await bus.publish("orders.placed", Order(number, item, price)))
        return ids

    yield


@asynccontextmanager
async def billing(bus: tl.Bus, name: str) -> AsyncIterator[None]:
    """One of the workers that share the orders. A message counts as delivered when `bill` has returned."""
    bank_answers = True

    @bus.on("orders.*", group="billing", durable=True, capacity=4, retry=tl.Retry(attempts=3, delay_s=0.05))
    async def bill(order: Order) -> None:
        if not bank_answers:
            await bus.publish("billing.stuck", order.number)
            await asyncio.Event().wait()
        if order.currency not in RATES:
            raise LookupError(f"no rate for {order.currency}")
        await bus.publish("invoices.sent", Invoice(order.number, order.total * RATES[order.currency], name))

    @bus.on(f"{name}.bank")
    async def bank(answers: bool) -> bool:
        nonlocal bank_answers
        bank_answers = answers
        return answers

    yield


@asynccontextmanager
async def dashboard(bus: tl.Bus, name: str) -> AsyncIterator[None]:
    """Shows the last ten orders on request. It reads only then, so it is too slow for a busy day."""
    async with bus.subscribe("orders.*", name=name, capacity=10, overflow="drop_oldest") as orders:

        @bus.on("dashboard.look")
        async def look(last: int) -> Look:
            """Until the order that must be there."""
            shown: list[int] = []
            while last not in shown and (message := await orders.recv()) is not None:
                shown.append(message.decode(Order).number)
            return Look(shown, orders.account().dropped)

        yield


@asynccontextmanager
async def analyst(bus: tl.Bus, name: str) -> AsyncIterator[None]:
    """Wants only invoices of five euros and more, and lets a Jupyter kernel do the sums."""
    euros: list[float] = []
    async with bus.subscribe("invoices.*", name=name, where="payload.euros >= 5") as invoices:

        @bus.on("analyst.mean")
        async def mean(task: MeanOf) -> Mean:
            while len(euros) < task.invoices and (message := await invoices.recv()) is not None:
                euros.append(message.decode(Invoice).euros)
            async with tl.jupyter.join(bus, task.kernel) as kernel:
                result = await kernel.run(f"import statistics; statistics.mean({euros})")
            books = invoices.account()
            return Mean(result.text or str(result.error), books.delivered, books.filtered)

        yield


ROLES: dict[str, Callable[[tl.Bus, str], AbstractAsyncContextManager[None]]] = {
    "desk": desk,
    "billing": billing,
    "dashboard": dashboard,
    "analyst": analyst,
    "prices": prices,
}


async def main(name: str, address: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with tl.connect(address, name=name) as bus, ROLES[name.partition("-")[0]](bus, name):
        await bus.flush()  # the hub knows the subscriptions
        await bus.publish("agents.ready", name)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
