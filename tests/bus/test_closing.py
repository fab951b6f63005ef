from __future__ import annotations

import asyncio
import gc
import warnings

import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline.testing.simulate import Simulation, simulate

pytestmark = pytest.mark.usefixtures("both_ways")


def test_closing_lets_handlers_finish_what_is_there() -> None:
    done: list[int] = []

    async def main(bus: tl.Bus) -> None:
        @bus.on("t")
        async def work(n: int) -> None:
            await asyncio.sleep(0.1)
            done.append(n)

        await bus.publish_many("t", range(20))
        assert await bus.aclose() == []

    on_bus(main)
    assert done == list(range(20))


def test_closing_waits_for_a_retry_that_is_due_in_time() -> None:
    async def main(bus: tl.Bus) -> None:
        calls: list[int] = []

        @bus.on("t", retry=tl.Retry(delay_s=1))
        async def flaky(message: tl.Message) -> None:
            calls.append(message.attempts)
            if not message.attempts:
                raise ConnectionError

        await bus.publish("t")
        assert await bus.aclose() == []
        assert calls == [0, 1]

    on_bus(main)


def test_deadline_ends_the_wait_and_returns_the_unfinished_with_their_fate() -> None:
    async def main(bus: tl.Bus) -> None:
        interrupted: list[int] = []

        @bus.on("t", name="slow")
        async def slow(n: int) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                interrupted.append(n)
                raise

        ids = await bus.publish_many("t", range(3))
        await asyncio.sleep(0.1)
        start = asyncio.get_running_loop().time()
        left = await bus.aclose(drain_s=2)
        assert asyncio.get_running_loop().time() - start == pytest.approx(2.0)
        assert [item.message.id for item in left] == ids
        assert {item.outcome.subscriber for item in left} == {"slow"}
        assert {item.outcome.fate for item in left} == {tl.Fate.DROPPED}
        assert interrupted == [0]
        assert await bus.aclose() == left

    on_bus(main)


def test_stream_in_another_task_reads_to_the_end() -> None:
    async def main(bus: tl.Bus) -> None:
        stream = await bus.subscribe("t").open()
        seen: list[int] = []

        async def read() -> None:
            async for message in stream:
                await asyncio.sleep(0.1)
                seen.append(message.decode())

        reader = asyncio.create_task(read())
        await bus.publish_many("t", range(10))
        await asyncio.sleep(0.05)
        assert await bus.aclose() == []
        await reader
        assert seen == list(range(10))

    on_bus(main)


def test_stream_nobody_reads_does_not_delay_closing() -> None:
    async def main(bus: tl.Bus) -> None:
        stream = await bus.subscribe("t").open()
        await bus.publish("t")
        left = await bus.aclose()
        assert asyncio.get_running_loop().time() == 0
        assert len(left) == 1
        assert stream.closed
        assert await stream.recv() is None

    on_bus(main)


def test_waiting_publisher_is_let_go_when_its_subscriber_leaves() -> None:
    async def main(bus: tl.Bus) -> None:
        stream = await bus.subscribe("t", capacity=1).open()
        await bus.publish("t")
        waiting = asyncio.create_task(bus.publish("t"))
        await until(lambda: bus.pending() == 2)
        await stream.aclose()
        message_id = await waiting
        assert (await bus.explain(message_id)).outcomes[0].fate is tl.Fate.DROPPED

    on_bus(main)


def test_a_stream_that_is_dropped_without_closing_is_noticed() -> None:
    async def main(bus: tl.Bus) -> None:
        healthy = await bus.subscribe("t", name="healthy").open()
        forgotten = await bus.subscribe("t", name="forgotten").open()
        await bus.publish("t")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del forgotten
            gc.collect()
        ours = [warning for warning in caught if "forgotten was never closed" in str(warning.message)]
        assert [warning.category for warning in ours] == [ResourceWarning]
        await bus.publish("t")
        assert bus.subscribers("t") == ["healthy"]
        assert healthy.depth == 2
        await healthy.aclose()

    on_bus(main)


def test_cancelling_the_owner_closes_cleanly() -> None:
    async def main(simulation: Simulation) -> None:
        async def owner() -> None:
            world = tl.World(time_ns=simulation.time_ns, uuid7=simulation.uuid7, random=simulation.random)
            async with tl.connect(world=world) as bus:

                @bus.on("t")
                async def slow() -> None:
                    await asyncio.sleep(1)

                await bus.publish("t")
                await asyncio.Event().wait()

        task = asyncio.create_task(owner())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    simulate(main)


def test_handlers_may_publish_and_ask_while_they_finish() -> None:
    done: list[str] = []

    async def main(bus: tl.Bus) -> None:
        @bus.on("first")
        async def first() -> None:
            await asyncio.sleep(1)
            await bus.publish("second", await bus.request("name", timeout_s=2))

        @bus.on("second")
        async def second(name: str) -> None:
            await asyncio.sleep(1)
            done.append(name)

        @bus.on("name")
        async def name() -> str:
            return "Ada"

        waiting = asyncio.create_task(bus.request("name"))
        await bus.publish("first")
        closing = asyncio.create_task(bus.aclose())
        await asyncio.sleep(0.5)
        with pytest.raises(tl.BusClosed):
            await bus.publish("first")
        assert await closing == []
        assert await waiting == "Ada"

    on_bus(main)
    assert done == ["Ada"]


def test_cancelled_closing_closes_at_once() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("t")
        async def slow() -> None:
            await asyncio.sleep(1000)

        await bus.publish("t")
        closing = asyncio.create_task(bus.aclose(drain_s=100))
        await asyncio.sleep(1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)
        assert len(await bus.aclose()) == 1

    on_bus(main)


def test_handler_that_closes_its_own_bus_does_not_hang() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("stop")
        async def stop() -> None:
            await bus.aclose(drain_s=1)

        await bus.publish("stop")
        await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            left = await bus.aclose()
        assert [item.message.topic for item in left] == ["stop"]

    on_bus(main)
