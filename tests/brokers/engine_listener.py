"""A program that counts what it gets on a plain topic of an engine, until the payload "end": URL, topic.

It prints "ready", then what it got, what it knows to have missed, and how often it was connected.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import trunkline as tl
from trunkline.brokers.engine.broker import EngineBroker


async def listen(url: str, topic: str) -> None:
    async with tl.connect(url, name="listener") as bus, bus.subscribe(topic) as stream:
        await bus.flush()
        print("ready", flush=True)
        got = 0
        async for message in stream:
            got += 1
            if bytes(message.payload) == b"end":
                break
        assert isinstance(bus.broker, EngineBroker)
        print(got, stream.account().dropped, bus.broker.adapter.connects, flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(listen(*sys.argv[1:3]))
