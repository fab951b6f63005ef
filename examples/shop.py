"""An order shop in one process: what a bus does, and what it reports afterwards."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from dataclasses import dataclass

import trunkline as tl

ORDERS = 60
MEASURE_S = 1.0


@dataclass
class Order:
    number: int
    sku: str
    total: float


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def line(what: str, value: object) -> None:
    print(f"  {what:38} {value}")


class Shop:
    """The handlers of the story."""

    def __init__(self, bus: tl.Bus) -> None:
        self.bus = bus
        self.repeats = 0
        bus.handle("pricing", self.price)
        bus.handle("orders.*", self.bill, name="billing", group="billing", retry=tl.Retry(attempts=4, delay_s=0.01))

    async def price(self, sku: str) -> float:
        return {"tea": 4.5, "cup": 9.0}[sku]

    async def bill(self, order: Order, message: tl.Message) -> None:
        if order.number % 10 == 0 and message.attempts == 0:
            self.repeats += 1
            raise ConnectionError("the bank did not answer")
        await self.bus.publish("invoices.sent", order.number)


async def produce(bus: tl.Bus, region: str, numbers: range) -> None:
    for number in numbers:
        sku = ("tea", "cup")[number % 2]
        await bus.publish(f"orders.{region}", Order(number, sku, await bus.request("pricing", sku, reply=float)))


async def trade(bus: tl.Bus, shop: Shop) -> str:
    title("Three producers, a price service, and a bank that fails at times")
    begin = time.perf_counter()
    async with bus.subscribe("invoices.sent") as invoices:
        third = ORDERS // 3
        regions = enumerate(("asia", "europe", "africa"))
        producers = [produce(bus, region, range(i * third, (i + 1) * third)) for i, region in regions]
        await asyncio.gather(*producers)
        for _ in range(ORDERS):
            await invoices.recv()
    line("orders placed, each priced by request", ORDERS)
    line("billed at the second attempt", shop.repeats)
    line("invoices sent", ORDERS)
    line("took", f"{(time.perf_counter() - begin) * 1000:.0f} ms")
    return bus.history(pattern="orders.*")[0].id


async def poison(bus: tl.Bus) -> None:
    title("A poison message: kept, explained, repaired, replayed")
    async with bus.subscribe("_dead.>") as notices, bus.subscribe("invoices.sent") as invoices:
        bad = await bus.publish("orders.europe", {"number": 61, "sku": "tea", "total": "four"})
        await notices.recv()
        (letter,) = bus.dead_letters.find(message_id=bad)
        line("dead letter of", letter.subscriber)
        line("cause", letter.cause.value)
        line("reason", letter.reason.partition(": ")[2])
        bus.dead_letters.replay(letter, payload=Order(61, "tea", 4.0))
        await invoices.recv()
        fates = {outcome.subscriber: outcome.fate.value for outcome in (await bus.explain(bad)).outcomes}
        line("replayed to it alone, and now", fates[letter.subscriber])


async def early(bus: tl.Bus) -> None:
    title("An answer that comes before its question")
    await bus.post(tl.Message(type=tl.MessageType.RESPONSE, request_id="stock-17", payload={"tea": 120}))
    line("kept as an orphan", [orphan.why.value for orphan in bus.orphans])
    line("claimed by its request", await bus.wait_reply("stock-17", timeout_s=1))
    line("orphans left", len(bus.orphans))


async def measure(batch: int) -> tuple[float, bool]:
    """Messages per second from one publisher to one subscriber, and whether the books of that bus balance."""
    async with tl.connect() as bus, bus.subscribe("ticks") as ticks:

        async def count() -> None:
            async for _ in ticks:
                pass

        counting = asyncio.create_task(count())
        payloads = [b"x" * 100] * batch
        begin = now = time.perf_counter()
        while now - begin < MEASURE_S:
            for _ in range(1000 // batch):
                await (bus.publish_many("ticks", payloads) if batch > 1 else bus.publish("ticks", payloads[0]))
            now = time.perf_counter()
        ticks.stop()
        await counting
        books = ticks.account()
        return books.delivered / (time.perf_counter() - begin), books.balanced and not books.in_flight


async def main() -> int:
    # Dead letters and drops are logged as they happen; here the report tells of them.
    logging.getLogger("trunkline").addHandler(logging.NullHandler())
    async with tl.connect("memory:", name="shop") as bus:
        shop = Shop(bus)
        async with bus.subscribe("orders.>", name="dashboard", capacity=10, overflow=tl.Overflow.DROP_OLDEST) as slow:
            first = await trade(bus, shop)
            await poison(bus)
            await early(bus)
            title("Where did the first order go?")
            print(f"  {await bus.explain(first)}".replace("\n", "\n  "))
            kept = [message.decode()["number"] for message in await anext(aiter(slow.batches()))]
            line("the slow dashboard still got", f"{len(kept)} orders, the last is {kept[-1]}")
        title("The books")
        columns = tl.Account.__struct_fields__
        print(f"  {'':20}" + "".join(f"{name.replace('_', ' '):>10}" for name in columns))
        accounts = {**bus.accounts(), "all together": bus.stats().account}
        for name, books in accounts.items():
            print(f"  {name or 'those who left':20}" + "".join(f"{getattr(books, c):>10}" for c in columns))
        balanced = all(books.balanced for books in accounts.values()) and bus.stats().pending == 0
    title("Two seconds of publishing: 100 bytes a message, one publisher, one subscriber")
    for batch in (1, 100):
        rate, measured = await measure(batch)
        line("one by one" if batch == 1 else f"{batch} at a time", f"{rate:>9,.0f} messages per second, delivered")
        balanced = balanced and measured
    print(f"\nThe books {'balance' if balanced else 'DO NOT balance'}.")
    return 0 if balanced else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
