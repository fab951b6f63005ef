"""Durable topics: a service is stopped in the middle, continues after a restart, and handles a dead letter again."""

from __future__ import annotations

import asyncio
import tempfile

import trunkline as tl

ORDERS = {"a1": "tea", "a2": "cup", "a3": "tea", "a4": "hat", "a5": "cup"}


async def place(directory: str) -> None:
    """The shop: when a publish returns, the order is on disk. There are no subscribers yet."""
    async with tl.connect("memory:", name="shop", journal=directory) as bus:
        for order, item in ORDERS.items():
            await bus.publish("orders.placed", item, id=order)


async def pack_orders(directory: str, stock: set[str], until: str, *, breaks: bool = False) -> None:
    """One run of the packing service: it starts where the last run ended, and stops at a given order."""
    reached = asyncio.Event()
    async with tl.connect("memory:", name="depot", journal=directory) as bus:
        # The journal knows the handler by its name, "pack", and so how far it is.
        @bus.on("orders.placed", durable=True, start="beginning", retry=tl.Retry(attempts=2, delay_s=0.01))
        async def pack(item: str, message: tl.Message) -> None:
            if message.id == until:
                reached.set()
                if breaks:
                    print(f"  {message.id}: begun, and then the power goes")
                    await asyncio.sleep(3600)
            if item not in stock:
                raise LookupError(f"there is no {item}")
            print(f"  {message.id}: packed a {item}")

        again = await bus.replay_dead(subscriber="pack")
        await reached.wait()
        if again.ids:
            print(f"  {again.count} dead letter replayed")
        await bus.aclose(drain_s=0 if breaks else None)
    with tl.journal.Reader(directory) as journal:
        fates = [f"{order.id} {journal.outcomes(order)[0].fate}" for order in journal.messages("orders.*")]
    print("  on disk:", ", ".join(fates))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        await place(directory)
        print("the first run is stopped in the middle of an order")
        await pack_orders(directory, {"tea", "cup"}, "a3", breaks=True)
        print("the second goes on with it, and cannot pack a hat")
        await pack_orders(directory, {"tea", "cup"}, "a5")
        print("the third has hats")
        await pack_orders(directory, {"tea", "cup", "hat"}, "a4")


if __name__ == "__main__":
    asyncio.run(main())
