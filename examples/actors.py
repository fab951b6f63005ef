"""A bakery of actors: typed messages, a supervised oven that fails, and a monitor, an audit and a morgue beside it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import trunkline as tl


@dataclass(frozen=True)
class Order:
    what: str
    count: int


class Oven(tl.actors.Actor):
    async def receive(self, order: Order) -> str:
        if order.what == "bricks":
            raise ValueError("bricks do not bake")
        return f"{order.count} {order.what}, warm"


class Till(tl.actors.Actor):
    def __init__(self) -> None:
        self.sold = 0

    @tl.actors.handles(Order)
    async def sell(self, order: Order) -> str:
        self.sold += order.count
        baked: str = await self.context.request("bakery.oven", order)
        return baked


async def main() -> None:
    async with (
        tl.connect(name="street") as bus,
        bus.subscribe("_to.bakery.>", name="monitor") as monitor,
        bus.subscribe(">", name="audit", where="type == 'request'") as audit,
        bus.subscribe("_dead.>", name="morgue") as morgue,
        tl.actors.ActorSystem(bus, "bakery") as bakery,
    ):
        await bakery.spawn(Oven, name="oven", failed=tl.actors.Failed.DEAD_LETTER)
        counter = await bakery.spawn(Till, name="counter")
        print(await counter.ask(Order("rolls", 6)))
        try:
            await bakery.ref("bakery.oven").ask(Order("bricks", 1))
        except tl.RequestFailed as error:
            print("refused:", error.detail)
        print(await counter.ask(Order("loaves", 2)))
        await bus.send("bakery.cellar", "hello?")
        print("monitor:", dict(Counter(monitor.try_recv().topic for _ in range(monitor.depth))))
        print("audit:", audit.depth, "requests")
        print("morgue:", [(await morgue.recv()).headers["cause"] for _ in range(2)])  # type: ignore[union-attr,index]


if __name__ == "__main__":
    asyncio.run(main())
