"""A camera with 200 frames a second in shared memory: one consumer plots, one records to a journal, one is killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

import trunkline as tl

FRAME = np.dtype([("number", "i8"), ("image", "u1", (120, 160))])
FRAMES, PER_S, BARS = 300, 200, "▁▂▃▄▅▆▇█"


def film(on: Any) -> None:
    with tl.memory.producer("camera", schema=FRAME, capacity=32) as camera:
        on.set()
        while len(camera.metrics().consumers) < 3:
            camera.serve(timeout_s=1)
        for number in range(FRAMES):
            time.sleep(1 / PER_S)
            with camera.loan() as loan:  # written in place, and sent at the end of the block
                loan.data["number"], loan.data["image"] = number, 120 + 100 * np.sin(number / 24)
        assert camera.metrics().cut_off == 1, "the one that was killed: nobody waits for it"


def watch() -> None:
    with tl.memory.consumer("camera", wants="every") as frames:
        print("watched:", sum(1 for _ in frames))  # never: it is killed before


async def plot(victim: Any) -> None:
    async with tl.memory.consumer("camera", wants="latest") as frames:
        seen = []
        async for frame in frames:
            seen.append(BARS[int(frame.data["image"].mean()) // 32])
            if frame.data["number"] > FRAMES // 3:
                victim.kill()
    print("plotted:", "".join(seen[:: max(1, len(seen) // 60)]))


async def record(folder: str) -> None:
    async with tl.connect("memory:", journal=folder) as bus, tl.memory.consumer("camera", wants="every") as frames:
        async for frame in frames:
            await bus.publish("camera.frames", frame.data.tobytes())
        assert frames.metrics().overruns == 0


async def main(show_rows: Any = None) -> None:
    processes = multiprocessing.get_context("spawn")
    on = processes.Event()
    camera, victim = processes.Process(target=film, args=(on,)), processes.Process(target=watch)
    with tempfile.TemporaryDirectory() as folder:
        camera.start()
        await asyncio.to_thread(on.wait)
        victim.start()
        await asyncio.gather(plot(victim), record(folder))
        for process in (camera, victim):
            process.join()
        assert (camera.exitcode, victim.exitcode) == (0, -9)
        with tl.journal.Reader(folder) as journal:
            movie = np.array([np.frombuffer(each.payload, FRAME)[0] for each in journal.messages("camera.*")])
        assert list(movie["number"]) == list(range(FRAMES))
        print(f"recorded: {len(movie)} frames of {movie['image'].shape[1:]}, none missing; one consumer was killed")
        if show_rows:
            show_rows(folder)


def rows(folder: str) -> None:
    with tl.spark.session("local[2]") as spark:
        found = tl.spark.messages(spark, folder).where("topic = 'camera.frames'").orderBy("seq").collect()
    print(f"in Spark: {len(found)} rows; the last is frame {np.frombuffer(found[-1]['payload'], FRAME)['number'][0]}")


if __name__ == "__main__":
    asyncio.run(main(rows if find_spec("pyspark") else None))
