"""Many threads on a hub in its own process: through one bus, and with one blocking bus each."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import trunkline as tl
from tests.hub.up import Up, up

THREADS = 4
EACH = 100


def test_threads_publish_through_the_door_of_one_bus(tmp_path: Path) -> None:
    async def play(hub: Up) -> None:
        async with (
            tl.connect(hub.address, name="publisher") as bus,
            tl.connect(hub.address, name="reader", connection=tl.ConnectionSettings(connect_s=20.0)) as reader,
            reader.subscribe("t.>") as messages,
        ):
            door = bus.from_thread()
            start = threading.Barrier(THREADS)

            def work(thread: int) -> list[str]:
                start.wait(20)
                soon = [door.publish(f"t.{thread % 2}", [thread, n]) for n in range(EACH)]
                return [each.result(20) for each in soon]

            with ThreadPoolExecutor(THREADS) as pool:
                loop = asyncio.get_running_loop()
                made = await asyncio.gather(*(loop.run_in_executor(pool, work, n) for n in range(THREADS)))
            ids = [message_id for each in made for message_id in each]
            assert len(set(ids)) == THREADS * EACH
            seen: dict[int, list[int]] = defaultdict(list)
            got: set[str] = set()
            for _ in ids:
                message = await messages.recv(timeout_s=20)
                assert message is not None
                thread, number = message.decode()
                seen[thread].append(number)
                got.add(message.id)
            assert got == set(ids)
            # Each thread's messages in the order in which it published them.
            assert seen == {thread: list(range(EACH)) for thread in range(THREADS)}

    with up(tmp_path) as hub:
        asyncio.run(play(hub))


def test_a_blocking_bus_in_each_of_several_threads(tmp_path: Path) -> None:
    def work(address: str, thread: int) -> list[int]:
        with tl.connect_blocking(address, name=f"thread-{thread}") as bus:
            with bus.subscribe(f"own.{thread}") as mine, bus.subscribe("all", capacity=10_000) as everything:
                start.wait(20)
                for n in range(EACH):
                    bus.publish(f"own.{thread}", n)
                    bus.publish("all", n)
                    if n % 10 == 0:
                        assert bus.request("double", thread * 1000 + n, timeout_s=20) == 2 * (thread * 1000 + n)
                got = [message.decode() for message in (mine.recv(timeout_s=20) for _ in range(EACH)) if message]
                for _ in range(THREADS * EACH):
                    assert everything.recv(timeout_s=20) is not None
            assert bus.stats().account.balanced
            return got

    start = threading.Barrier(THREADS)
    with up(tmp_path) as hub, tl.connect_blocking(hub.address, name="doubler") as doubler:

        @doubler.on("double")
        def double(number: int) -> int:
            return 2 * number

        doubler.flush()
        with ThreadPoolExecutor(THREADS) as pool:
            working = [pool.submit(work, hub.address, thread) for thread in range(THREADS)]
            assert [each.result(60) for each in working] == [list(range(EACH))] * THREADS


def test_one_blocking_bus_for_several_threads(tmp_path: Path) -> None:
    with (
        up(tmp_path) as hub,
        tl.connect_blocking(hub.address, name="shared") as bus,
        bus.subscribe("t", capacity=10_000) as stream,
    ):

        def work(thread: int) -> list[str]:
            return [bus.publish("t", [thread, n]) for n in range(EACH)]

        def read() -> list[str]:
            taken = (stream.recv(timeout_s=20) for _ in range(EACH))
            return [message.id for message in taken if message is not None]

        with ThreadPoolExecutor(2 * THREADS) as pool:
            reading = [pool.submit(read) for _ in range(THREADS)]
            published = [message_id for ids in pool.map(work, range(THREADS)) for message_id in ids]
            got = [message_id for each in reading for message_id in each.result(60)]
        assert sorted(got) == sorted(published)
