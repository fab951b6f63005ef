"""Publishing from threads into an async bus, and a bus that is used without async."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import trunkline as tl


async def door() -> None:
    """The bus runs in the event loop. Sensors in their own threads publish into it."""
    async with tl.connect(name="plant") as bus, bus.subscribe("sensors.*") as readings:
        way_in = bus.from_thread()

        def sensor(name: str) -> int:
            # `publish` does not wait; the future gives the id, or the error if the message was refused.
            futures = [way_in.publish(f"sensors.{name}", value) for value in range(100)]
            return len({future.result() for future in futures})

        sent = await asyncio.gather(*(asyncio.to_thread(sensor, name) for name in ("heat", "light", "sound")))
        heat = [message.decode(int) for message in bus.history(pattern="sensors.heat")]
        print(f"door: {sum(sent)} sent, {readings.depth} arrived, each sensor in order: {heat == list(range(100))}")


def script() -> None:
    """Without an event loop: for scripts, notebooks and programs built on threads."""
    with tl.connect_blocking(name="script") as bus, ThreadPoolExecutor(4) as pool:

        @bus.on("square", concurrency=4)
        def square(number: int) -> int:  # a plain function runs in a thread
            return number * number

        answers = list(pool.map(lambda n: bus.request("square", n, reply=int), range(10)))
        print(f"blocking: the squares {answers}")
        with bus.subscribe("news.*") as news:
            bus.publish("news.local", "it rains")
            message = news.recv(timeout_s=1)
            print(f"blocking: {message.decode() if message else 'closed'}")
            try:
                news.recv(timeout_s=0.01)
            except tl.StreamEmpty as error:
                print(f"blocking: {error}")
        print(f"blocking: balanced {bus.stats().account.balanced}, left unfinished {bus.close()}")


async def main() -> None:
    await door()
    await asyncio.to_thread(script)


if __name__ == "__main__":
    asyncio.run(main())
