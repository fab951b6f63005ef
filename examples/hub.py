"""Several processes on one bus: two workers share jobs through a hub, and one dies in the middle of its work."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile

import trunkline as tl

JOBS = 12


def work(address: str, name: str, clumsy: bool) -> None:
    async def main() -> None:
        async with tl.connect(address, name=name) as bus:

            @bus.on("jobs", group="workers", capacity=2)
            async def double(number: int) -> None:
                if clumsy and number >= 4:
                    os._exit(1)
                await bus.publish("results", [number, 2 * number])

            await bus.flush()
            await bus.publish("ready", name)
            await asyncio.Event().wait()

    asyncio.run(main())


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix://{folder}/hub.sock"
        # A hub of our own, for as long as this bus lives; a real one is started with `trunkline up`.
        async with (
            tl.connect(address, name="boss", embed=True) as bus,
            bus.subscribe("ready") as ready,
            bus.subscribe("results") as results,
        ):
            spawn, names = multiprocessing.get_context("spawn"), ("careful", "clumsy")
            workers = [
                spawn.Process(target=work, args=(address, name, name == "clumsy"), daemon=True) for name in names
            ]
            for worker in workers:
                worker.start()
            for _ in workers:
                await ready.recv()
            print(f"two workers are here, {JOBS} jobs are shared between them")
            await bus.publish_many("jobs", list(range(JOBS)))
            done = [message.decode()[1] for _ in range(JOBS) if (message := await results.recv()) is not None]
            print(f"one worker died over a job, and all {len(done)} are done: {sorted(done)}")
            for worker in workers:
                worker.kill()
                worker.join()


if __name__ == "__main__":
    asyncio.run(main())
