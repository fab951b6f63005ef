"""The four patterns, and where to look afterwards: stats, history, dead letters, explain."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import trunkline as tl


@dataclass
class Order:
    id: str
    total: float


async def main() -> None:
    async with tl.connect("memory:", name="shop") as bus:
        # 1. Publish: everybody whose pattern matches gets it. Once awaited, it is in the inboxes.
        async with bus.subscribe("orders.*") as orders:
            placed = await bus.publish("orders.placed", Order("a1", 9.5), priority=tl.Priority.HIGH, ttl_s=60)
            message = orders.try_recv()
            print(f"published   {message.topic} with priority {message.priority}: {message.decode(Order)}")

        # 2. Send: to one endpoint, by name.  3. Broadcast: to all endpoints.
        async with bus.subscribe(tl.endpoint("packer")) as packer, bus.subscribe(tl.endpoint("driver")) as driver:
            await bus.send("packer", {"pack": "a1"})
            await bus.broadcast("closing at six")
            print(f"sent        packer has {packer.depth} messages, driver has {driver.depth}")
            print(f"packer      {packer.try_recv().decode()}, then {packer.try_recv().decode()!r}")
            print(f"driver      {driver.try_recv().decode()!r}")

        # 4. Request: what the handler returns is the answer.
        @bus.on("pricing")
        async def price(sku: str) -> float:
            return {"a1": 9.5}[sku]

        print(f"requested   a1 costs {await bus.request('pricing', 'a1', reply=float, timeout_s=1)}")

        # A handler that cannot handle something: the message is kept, with the reason.
        @bus.on("orders.refund")
        async def refund(order: Order) -> None:
            raise tl.Reject(f"{order.id} was never paid")

        async with bus.subscribe("_dead.>") as notices:
            refused = await bus.publish("orders.refund", Order("b2", 3.0))
            await notices.recv()
        for letter in bus.dead_letters:
            print(f"dead letter {letter.subscriber} on {letter.message.topic}: {letter.reason}")

        stats = bus.stats()
        print(f"stats       {stats.total_messages} messages, {stats.total_failed} failed, {stats.pending} pending")
        print(f"history     {', '.join(message.topic for message in bus.history(limit=3, pattern='orders.>'))}")
        print(await bus.explain(placed), await bus.explain(refused), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
