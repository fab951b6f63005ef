"""Virtual time, seeded schedules, deadlocks: what `trunkline.testing` promises of its loop and of `simulate`."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.testing.loop import Deadlock, Livelock, VirtualLoop
from trunkline.testing.simulate import START_NS, Simulation, simulate

SEEDS = range(200)


async def trace(_: Simulation) -> list[str]:
    """The steps of five tasks in the order they ran, until their group cancels them, in the order of a set."""
    steps: list[str] = []

    async def walk(name: str) -> None:
        try:
            for step in range(5):
                steps.append(f"{name}{step}")
                await asyncio.sleep(step % 2)
            await asyncio.Event().wait()
        finally:
            steps.append(f"{name} ends")

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for name in "abcde":
                group.create_task(walk(name))
            await asyncio.sleep(30)
            raise LookupError
    return steps


def on(loop: VirtualLoop, main: Awaitable[object]) -> object:
    async def run() -> object:
        return await main

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())


def test_a_thousand_seconds_take_no_time() -> None:
    async def main(simulation: Simulation) -> float:
        await asyncio.sleep(1000)
        return simulation.now()

    began = time.monotonic()
    assert simulate(main) == 1000
    assert time.monotonic() - began < 100


@pytest.mark.parametrize("start", [0.0, 1.0, 1e9, 1e12])
def test_timers_fire_exactly_wherever_time_starts(start: float) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for delay in (0, 0.5, 0.25, 30 * 24 * 3600):  # the last is more than one `select` may wait
            await asyncio.sleep(delay)
            times.append(loop.time())
        return times

    assert on(VirtualLoop(start=start), main()) == [start + t for t in (0, 0, 0.5, 0.75, 2592000.75)]


def test_timeouts_are_virtual() -> None:
    async def main(simulation: Simulation) -> list[float]:
        times = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(3600)
        times.append(simulation.now())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 40)
        times.append(simulation.now())
        async with asyncio.timeout(10):
            await asyncio.wait_for(asyncio.sleep(9), 10)
        return [*times, simulation.now()]

    assert simulate(main) == [60, 100, 109]


def test_a_seed_is_a_schedule() -> None:
    schedules, ballast = {}, []
    for seed in SEEDS:
        schedules[seed] = simulate(trace, seed=seed)
        ballast.append([object() for _ in range(seed)])  # memory addresses must not matter
        assert simulate(trace, seed=seed) == schedules[seed]
    assert len(set(map(tuple, schedules.values()))) == len(SEEDS)


def test_two_tasks_race_and_the_seed_decides() -> None:
    async def main(_: Simulation) -> str:
        arrivals: list[str] = []

        async def run(name: str) -> None:
            await asyncio.sleep(1)
            arrivals.append(name)

        await asyncio.gather(run("hare"), run("tortoise"))
        return arrivals[0]

    winners = [simulate(main, seed=seed) for seed in SEEDS]
    assert winners == [simulate(main, seed=seed) for seed in SEEDS]
    assert 60 < winners.count("hare") < 140


def test_without_a_seed_tasks_run_first_in_first_out() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def note(n: int) -> None:
            await asyncio.sleep(0)
            seen.append(n)

        await asyncio.gather(*map(note, range(50)))
        return seen

    assert on(VirtualLoop(), main()) == list(range(50))


def test_callbacks_keep_their_order_and_a_task_its_steps() -> None:
    async def main(_: Simulation) -> tuple[list[int], dict[int, list[int]]]:
        loop = asyncio.get_running_loop()
        called: list[int] = []
        stepped: dict[int, list[int]] = {}

        class Noted(int):
            def __str__(self) -> str:
                called.append(self)
                return "noted"

        async def step(n: int) -> None:
            for i in range(5):
                stepped.setdefault(n, []).append(i)
                await asyncio.sleep(0)

        tasks = []
        for n in range(10):
            loop.call_soon(called.append, n)
            tasks.append(loop.create_task(step(n)))
            loop.call_soon(tasks[-1].set_name, Noted(n))  # bound to a task, and yet no step of it
        await asyncio.wait(tasks)
        return called, stepped

    for seed in SEEDS:
        called, stepped = simulate(main, seed=seed)
        assert called == [n // 2 for n in range(20)]
        assert stepped == {n: [0, 1, 2, 3, 4] for n in range(10)}


def test_the_callbacks_of_one_future_keep_their_order() -> None:
    async def spin() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError

    async def main(_: Simulation) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                for _spinner in range(5):
                    group.create_task(spin())
                await group.create_task(fail())  # the group must hear of it before we do
        except ExceptionGroup as errors:
            return len(errors.exceptions)
        return 0

    assert {simulate(main, seed=seed) for seed in SEEDS} == {1}


def test_a_deadlock_is_told_with_names_and_places() -> None:
    ended: list[str] = []

    async def main(_: Simulation) -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def starve() -> None:
            try:
                await queue.get()
            finally:
                ended.append("starve")

        await asyncio.to_thread(int)  # an idle thread of the executor is nobody to wait for
        await asyncio.create_task(starve(), name="hungry")

    began = time.monotonic()
    with pytest.raises(Deadlock) as caught:
        simulate(main, seed=7)
    assert time.monotonic() - began < 5
    assert len(caught.value.tasks) == 2
    assert all(word in str(caught.value) for word in ("'hungry'", "test_loop.py", "queue.get()", "the task 'hungry'"))
    assert caught.value.__notes__ == ["replay with seed=7"]
    assert ended == ["starve"]


def test_a_livelock_ends() -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            for _ in itertools.count():
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(1)  # cleaning up may take steps again
            ended.append("main")

    with pytest.raises(Livelock, match=r"(?s)1,000 callbacks.*test_loop"):
        on(VirtualLoop(max_steps=1000), main())
    assert ended == ["main"]


def test_threads_work_and_time_waits_for_them() -> None:
    async def main(simulation: Simulation) -> list[float]:
        loop = asyncio.get_running_loop()
        times: list[float] = []
        thread_is_late = threading.Event()
        loop.call_later(1, lambda: times.append(simulation.now()))
        assert await asyncio.wait_for(asyncio.to_thread(thread_is_late.wait, 0.05), 10) is False
        times.append(simulation.now())
        heard = asyncio.Event()
        thread = threading.Timer(0.05, loop.call_soon_threadsafe, [heard.set])  # not of an executor
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(heard.wait(), 5)
        thread.start()
        await heard.wait()  # no deadlock
        thread.join()
        return [*times, simulation.now()]

    assert simulate(main) == [0, 1, 5]


def test_time_waits_for_threads_that_nobody_awaits_any_more() -> None:
    async def main(_: Simulation) -> list[str]:
        ended: list[str] = []
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            loop.call_soon_threadsafe(started.set)
            threading.Event().wait(0.05)
            ended.append("work")

        task = asyncio.create_task(asyncio.to_thread(work))
        await started.wait()
        task.cancel()
        await asyncio.sleep(1)
        return list(ended)

    assert simulate(main) == ["work"]


def test_patience_with_threads_is_bounded() -> None:
    release = threading.Event()
    released: list[bool] = []

    async def main() -> str:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(lambda: released.append(release.wait(600))), 5)
        for _ in range(100):
            await asyncio.sleep(1)  # the clock has stopped waiting for that thread
        release.set()
        return await asyncio.to_thread(lambda: "next")

    assert on(VirtualLoop(patience_s=0.5), main()) == "next"
    assert released == [True], "the loop went on before the thread had ended by itself"


def test_real_sockets_work() -> None:
    async def main(_: Simulation) -> bytes:
        reader, writer = await asyncio.open_connection(sock=ours)
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    ours, theirs = socket.socketpair()
    thread = threading.Timer(0.05, theirs.send, [b"late\n"])
    thread.start()
    with theirs:
        assert simulate(main) == b"late\n"
    thread.join()


def test_simulate_leaves_nothing_running() -> None:
    ended: list[str] = []

    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def main(_: Simulation) -> asyncio.AbstractEventLoop:
        keep.append(generate())
        await anext(keep[0])
        tasks.append(asyncio.create_task(linger()))
        await asyncio.to_thread(int)
        return asyncio.get_running_loop()

    keep: list[AsyncIterator[int]] = []
    tasks: list[asyncio.Task[None]] = []
    mine = asyncio.new_event_loop()
    asyncio.set_event_loop(mine)
    try:
        loop = simulate(main)
        assert asyncio.get_event_loop_policy().get_event_loop() is mine
    finally:
        asyncio.set_event_loop(None)
        mine.close()
    assert loop.is_closed()
    assert sorted(ended) == ["generator", "task"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]


def test_an_error_names_its_seed_and_a_running_loop_is_refused() -> None:
    async def fail(_: Simulation) -> None:
        raise LookupError("lost")

    async def nested() -> None:
        simulate(fail)

    with pytest.raises(LookupError, match="lost") as caught:
        simulate(fail, seed=42)
    assert caught.value.__notes__ == ["replay with seed=42"]
    with pytest.raises(RuntimeError, match="plain function"):
        asyncio.run(nested())


def test_the_wall_clock_jumps_alone() -> None:
    async def main(simulation: Simulation) -> list[float]:
        await asyncio.sleep(1.5)
        walls = [simulation.time_ns()]
        simulation.jump_wall(-3600)
        await asyncio.sleep(0.5)
        walls.append(simulation.time_ns())
        assert simulation.monotonic() == simulation.now() == 2.0
        return [(wall - START_NS) / 1e9 for wall in walls]

    assert simulate(main) == [1.5, -3598.0]


@given(st.lists(st.floats(-1e10, 1e10), max_size=30), st.integers())
def test_ids_are_uuid7_and_always_rise(jumps: list[float], seed: int) -> None:
    async def main(simulation: Simulation) -> list[str]:
        ids = [simulation.uuid7()]
        for jump in jumps:
            simulation.jump_wall(jump)
            ids += [simulation.uuid7(), simulation.uuid7()]
        return ids

    ids = simulate(main, seed=seed)
    prefixes = [id[:-3] for id in ids]  # the engine counts up the last 12 bits by itself
    assert prefixes == sorted(set(prefixes))
    assert all((uuid.UUID(id).version, uuid.UUID(id).variant) == (7, uuid.RFC_4122) for id in ids)
    assert uuid.UUID(ids[0]).int >> 80 == START_NS // 1_000_000
    assert simulate(main, seed=seed) == ids


def test_each_kind_of_chance_has_its_own_stream() -> None:
    async def main(simulation: Simulation, draws: int) -> tuple[float, bool, str]:
        faults = [simulation.chance(0.5) for _ in range(draws)]
        ids = [simulation.uuid7() for _ in range(draws)]
        assert not simulation.chance(0)
        assert simulation.chance(1)
        assert not draws or (0 < sum(faults) < draws and len(set(ids)) == draws)
        return simulation.random.random(), simulation.seed == 3, "".join(await trace(simulation))

    assert simulate(partial(main, draws=100), seed=3) == simulate(partial(main, draws=0), seed=3)


async def queues(_: Simulation) -> None:
    queue: asyncio.Queue[tuple[int, int]] = asyncio.Queue(maxsize=2)
    got: list[tuple[int, int]] = []

    async def produce(who: int) -> None:
        for n in range(10):
            await queue.put((who, n))

    async def consume() -> None:
        while True:
            got.append(await queue.get())
            queue.task_done()

    consumer = asyncio.create_task(consume())
    await asyncio.gather(*map(produce, range(3)))
    await queue.join()
    consumer.cancel()
    assert all([n for w, n in got if w == who] == list(range(10)) for who in range(3))


async def locks(_: Simulation) -> None:
    lock, room = asyncio.Lock(), asyncio.Semaphore(2)
    inside = {"lock": 0, "room": 0}

    async def enter() -> None:
        for name, gate, most in (("lock", lock, 1), ("room", room, 2)):
            async with gate:
                inside[name] += 1
                assert inside[name] <= most
                try:
                    await asyncio.sleep(0)
                finally:
                    inside[name] -= 1

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(enter()) for _ in range(8)]
        await asyncio.sleep(0)
        tasks[3].cancel()
    assert not lock.locked()


async def signals(_: Simulation) -> None:
    event, condition, barrier = asyncio.Event(), asyncio.Condition(), asyncio.Barrier(4)
    turn = 0

    async def follow(n: int) -> int:
        nonlocal turn
        await event.wait()
        async with condition:
            await condition.wait_for(lambda: turn == n)
            turn += 1
            condition.notify_all()
        return await barrier.wait()

    followers = [asyncio.create_task(follow(n)) for n in range(4)]
    event.set()
    assert sorted(await asyncio.gather(*followers)) == [0, 1, 2, 3]


async def groups(simulation: Simulation) -> None:
    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    tasks = [asyncio.create_task(sleep(n)) for n in (3, 1, 2)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [1]
    assert [await result for result in asyncio.as_completed(tasks)] == [1, 2, 3]
    shielded = asyncio.create_task(sleep(4))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(shielded), 1)
    assert await shielded == 4
    assert simulation.now() == 7


@pytest.mark.parametrize("use", [queues, locks, signals, groups])
def test_asyncio_primitives_behave_under_every_seed(use: Callable[[Simulation], Awaitable[None]]) -> None:
    for seed in SEEDS:
        simulate(use, seed=seed)
