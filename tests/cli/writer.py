"""A program that publishes to a journal until its standard input ends, and then says how many messages it published.

`python writer.py DIRECTORY [seal]`: with `seal` it seals, joins and deletes files all the time.
"""

from __future__ import annotations

import asyncio
import sys

import trunkline as tl
from trunkline.journal import Journal, JournalSettings, Sync


async def work(directory: str, sealing: bool) -> int:
    loop = asyncio.get_running_loop()
    stop = loop.run_in_executor(None, sys.stdin.read)
    settings = JournalSettings(seal=sealing, seal_rows=400, tend_s=0.03, replaced_s=0.3, sync=Sync.SYSTEM)
    published = 0
    with Journal(directory, settings) as journal:
        async with tl.connect("memory:", journal=journal, name="writer") as bus:

            @bus.on("work.>", name="worker", durable=True, retry=tl.Retry(attempts=1))
            async def worker(number: int) -> None:
                if number % 50 == 0:
                    raise tl.Reject("every fiftieth")

            print("ready", flush=True)
            while not stop.done():
                await bus.publish_many(f"work.{published % 3}", list(range(published, published + 10)))
                published += 10
                await asyncio.sleep(0.002)
    return published


if __name__ == "__main__":
    import logging

    logging.disable(logging.ERROR)
    print(asyncio.run(work(sys.argv[1], "seal" in sys.argv[2:])), flush=True)
