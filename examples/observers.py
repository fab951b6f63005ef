"""Monitor, audit and dead-letter capture: three plain subscribers. The observed programs need no changes."""

from __future__ import annotations

import asyncio
from collections import Counter

import trunkline as tl


async def monitor(messages: tl.Stream, seen: Counter[str]) -> None:
    """Counts messages by topic. It takes them in batches, so that watching everything stays cheap."""
    async for batch in messages.batches():
        seen.update(message.topic for message in batch)


async def audit(messages: tl.Stream, lines: list[str]) -> None:
    """Records sender, recipient and payload of each message, in order."""
    async for message in messages:
        lines.append(f"{message.seq:2} {message.type.name:8} {message.sender} -> {message.recipient or message.topic}")


async def capture(messages: tl.Stream, causes: list[str]) -> None:
    """Every dead letter is announced on `_dead.` and its topic, with the reason in the headers."""
    async for message in messages:
        headers = message.headers or {}
        causes.append(f"{headers['subscriber']}: {headers['reason']} ({message.topic}: {message.decode()})")


async def main() -> None:
    seen: Counter[str] = Counter()
    lines: list[str] = []
    causes: list[str] = []
    # Closing the bus ends the streams, the streams end the observers.
    async with asyncio.TaskGroup() as observers, tl.connect(name="shop") as bus:
        observers.create_task(monitor(await bus.subscribe(">", name="monitor").open(), seen))
        observers.create_task(audit(await bus.subscribe(">", name="audit").open(), lines))
        observers.create_task(capture(await bus.subscribe("_dead.>", name="capture").open(), causes))

        @bus.on("orders.placed", retry=tl.Retry(attempts=2, delay_s=0.01))
        async def bill(order: int) -> None:
            if order == 13:
                raise ValueError("no invoice has the number 13")

        bus.handle("prices", lambda sku: 9.5, name="price")
        async with bus.subscribe("_dead.>") as notices:
            await bus.publish_many("orders.placed", [12, 13])
            await bus.send("packer", "be quick")
            await bus.request("prices", "a1")
            await notices.recv()
    print("monitor:", ", ".join(f"{count} {topic.partition('-')[0]}" for topic, count in sorted(seen.items())))
    print("audit:", *lines, sep="\n  ")
    print("dead letters:", *causes, sep="\n  ")


if __name__ == "__main__":
    asyncio.run(main())
