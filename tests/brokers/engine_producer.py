"""A program that produces on a channel, consumes from it, and is killed as soon as it knows: URL, channel, name."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import trunkline as tl


async def produce(url: str, channel: str, name: str) -> None:
    async with tl.connect(url, name=name) as bus:
        directory = bus.broker.require_directory()
        await directory.register_producer(channel)
        await directory.register_consumer(channel, f"{name}-reads")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(produce(*sys.argv[1:4]))
