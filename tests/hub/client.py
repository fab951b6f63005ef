"""Programs that the tests run as clients in processes of their own: `python client.py member ADDRESS`.

They say what they did on standard output, a line at a time, and end when standard input is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import trunkline as tl


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def closed() -> None:
    """Return when the parent process has closed standard input."""
    await asyncio.to_thread(sys.stdin.buffer.read)


async def member(address: str) -> None:
    """Joins a group, takes five messages, and does not acknowledge them."""
    async with (
        tl.connect(address, name="member") as bus,
        bus.subscribe("work", group="workers", ack=True, capacity=5, name="held") as messages,
    ):
        say("ready")
        for _ in range(5):
            message = await messages.recv()
            assert message is not None
            say("took", message.decode())
        await closed()


async def taker(address: str, overflow: str) -> None:
    """Takes everything on a topic. At the end, it prints its books."""
    async with (
        tl.connect(address, name="taker") as bus,
        bus.subscribe("stream", overflow=overflow, capacity=1000, name="taker") as messages,
    ):
        say("ready")

        async def take() -> None:
            async for message in messages:
                if message.decode() == "last":
                    account = messages.account()
                    say("books", account.accepted, account.delivered, account.dropped)

        taking = asyncio.ensure_future(take())
        await closed()
        taking.cancel()


PROGRAMS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"member": member, "taker": taker}

if __name__ == "__main__":
    asyncio.run(PROGRAMS[sys.argv[1]](*sys.argv[2:]))
