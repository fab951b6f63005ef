"""A program that takes messages on an engine and never acknowledges them: URL, pattern, name, group.

It says each payload that it has, one a line, and is then to be killed.
"""

from __future__ import annotations

import asyncio
import sys

import trunkline as tl
from trunkline.delivery.options import DeliveryOptions


async def hold(url: str, pattern: str, name: str, group: str) -> None:
    async with tl.connect(url, name=f"holder of {name or group}") as bus:
        options: DeliveryOptions = {"durable": True, "lease_s": 600.0}
        if group:
            options["group"] = group
        else:
            options["name"] = name
        async with bus.subscribe(pattern, **options) as stream:
            print("ready", flush=True)
            while (message := await stream.recv()) is not None:
                print(message.decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:5]))
