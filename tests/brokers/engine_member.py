"""A program that takes messages on an engine: URL, pattern, name, group, and how many it acknowledges.

It says each payload that it has, one a line, and "flushed" when the engine knows what it has acknowledged. It is then
to be killed.
"""

from __future__ import annotations

import asyncio
import sys

import trunkline as tl
from trunkline.delivery.options import DeliveryOptions


async def hold(url: str, pattern: str, name: str, group: str, acknowledges: str = "0") -> None:
    async with tl.connect(url, name=f"holder of {name or group}") as bus:
        options: DeliveryOptions = {"durable": True, "lease_s": 600.0}
        if group:
            options["group"] = group
        else:
            options["name"] = name
        async with bus.subscribe(pattern, **options) as stream:
            print("ready", flush=True)
            left = int(acknowledges)
            while (message := await stream.recv()) is not None:
                print(message.decode(), flush=True)
                if left:
                    stream.ack(message)
                    left -= 1
                    if not left:
                        await bus.flush()
                        print("flushed", flush=True)


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:6]))
