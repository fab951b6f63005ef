from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

import trunkline as tl
from trunkline.bus.blocking import BlockingCall, LoopThread
from trunkline.errors import BusClosed


def test_the_four_patterns_without_an_event_loop() -> None:
    with tl.connect_blocking("memory:", name="script") as bus:

        @bus.on("price")
        def price(sku: str) -> float:
            return len(sku) * 1.5

        with bus.subscribe(">") as everything, bus.subscribe(tl.endpoint("me")) as mine:
            message_id = bus.publish("t", {"n": 1})
            first = everything.recv(timeout_s=5)
            assert first is not None
            assert first.id == message_id
            assert first.sender == "script"
            bus.send("me", "hi")
            bus.broadcast("all")
            assert [mine.try_recv().decode() for _ in range(2)] == ["hi", "all"]
            with pytest.raises(tl.StreamEmpty):
                mine.try_recv()
            with pytest.raises(tl.StreamEmpty):
                mine.recv(timeout_s=0.01)
            assert bus.request("price", "abcd", reply=float, timeout_s=5) == 6.0
            assert bus.try_request("nobody", timeout_s=0.01) is None
            with pytest.raises(tl.RequestTimeout):
                bus.request("nobody", timeout_s=0.01)
        assert "delivered" in str(bus.explain(message_id))
        assert bus.history(1)
        assert bus.stats().account.balanced
        assert bus.accounts()


def test_many_threads_at_once() -> None:
    with tl.connect_blocking() as bus, bus.subscribe("t", capacity=50) as stream:
        got: list[list[int]] = []

        def read() -> None:
            while len(got) < 400:
                message = stream.recv()
                assert message is not None
                got.append(message.decode())

        reader = threading.Thread(target=read)
        reader.start()

        def work(thread: int) -> list[str]:
            return [bus.publish("t", [thread, n]) for n in range(100)]

        with ThreadPoolExecutor(4) as pool:
            ids = [message_id for made in pool.map(work, range(4)) for message_id in made]
        reader.join(timeout=30)
        assert len(set(ids)) == 400
        for thread in range(4):
            assert [n for who, n in got if who == thread] == list(range(100))


def test_publish_soon_and_many() -> None:
    with tl.connect_blocking() as bus, bus.subscribe("t") as stream:
        futures = [bus.publish_soon("t", n) for n in range(500)]
        ids = [future.result(timeout=10) for future in futures]
        ids += bus.publish_many("t", range(500, 1000))
        assert [stream.try_recv().id for _ in range(1000)] == ids


def test_dead_letters_and_replay() -> None:
    with tl.connect_blocking() as bus:
        repaired = threading.Event()
        handled = threading.Event()

        @bus.on("t", retry=tl.Retry(attempts=1))
        def fragile() -> None:
            if not repaired.is_set():
                raise RuntimeError("broken")
            handled.set()

        with bus.subscribe("_dead.>") as dead:
            bus.publish("t")
            assert dead.recv(timeout_s=5) is not None
        (letter,) = bus.dead_letters
        repaired.set()
        bus.dead_letters.replay(letter)
        assert handled.wait(timeout=5)


def test_acknowledging_by_hand() -> None:
    with tl.connect_blocking() as bus, bus.subscribe("t", ack=True, retry=tl.Retry(delay_s=0.001)) as stream:
        bus.publish("t", 1)
        first = stream.recv(timeout_s=5)
        assert first is not None
        assert stream.nack(first, "not now") is not None
        again = stream.recv(timeout_s=5)
        assert again is not None
        assert again.attempts == 1
        assert stream.ack(again)
        assert not stream.ack(again)


def test_closing_returns_the_unfinished_and_ends_the_thread() -> None:
    before = threading.active_count()
    bus = tl.connect_blocking()
    stream = bus.subscribe("t")
    bus.publish("t", 1)
    (left,) = bus.close()
    assert left.outcome.fate is tl.Fate.DROPPED
    assert bus.close() == []
    assert threading.active_count() == before
    with pytest.raises(tl.BusClosed):
        bus.publish("t")
    with pytest.raises(tl.BusClosed):
        bus.stats()
    with pytest.raises(tl.BusClosed):
        stream.recv()


def test_failed_start_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(tl.UnknownScheme):
        tl.connect_blocking("nonsense://")
    assert threading.active_count() == before


def test_blocking_call_from_the_bus_thread_is_refused_not_a_deadlock() -> None:
    with tl.connect_blocking() as bus:

        @bus.on("t", retry=tl.Retry(attempts=1))
        async def wrong() -> None:
            bus.stats()

        with pytest.raises(tl.RequestFailed, match="wait for itself"):
            bus.request("t", timeout_s=5)


def test_run_reaches_what_has_no_blocking_twin() -> None:
    with tl.connect_blocking() as bus:
        assert bus.run(lambda inner: inner.router.rules()) == []
        assert isinstance(bus.run(lambda inner: inner.publish("t")), str)


def test_every_method_for_users_is_there_under_the_same_name() -> None:
    """Closing is called `close` here."""
    there = {name for name in dir(tl.Bus) if not name.startswith("_")} - {"aclose"}
    assert there <= {name for name in dir(tl.BlockingBus) if not name.startswith("_")}
    assert {"name", "settings", "broker", "hooks", "router"} <= set(dir(tl.BlockingBus))
    for name in there & set(dir(tl.BlockingBus)) - {"on", "subscribe", "request", "try_request"}:
        theirs = getattr(tl.Bus, name)
        if callable(theirs) and not name.startswith("_"):
            mine = inspect.signature(getattr(tl.BlockingBus, name))
            assert list(mine.parameters) == list(inspect.signature(theirs).parameters), name


def test_a_pipeline_without_an_event_loop(tmp_path: Path) -> None:
    with tl.connect_blocking("memory:", journal=tmp_path) as bus:
        with bus.pipeline() as pipe:
            ids = [pipe.publish("t", number) for number in range(5)]
            pipe.flush()
            assert pipe.in_flight == 0
        assert [message.id for message in bus.history(pattern="t")] == ids
        assert bus.last("t").decode() == 4  # type: ignore[union-attr]  # there is one
        assert isinstance(bus.from_thread().publish("t", 5).result(), str)


def test_producing_and_consuming_without_an_event_loop(tmp_path: Path) -> None:
    with tl.connect_blocking(f"unix://{tmp_path}/h.sock", embed=True) as bus:
        with bus.produce("orders", "shop-1", schema=int) as producer, bus.consume("orders", "billing-1") as messages:
            producer.publish(7)
            message = messages.recv(timeout_s=30)
            assert message is not None
            assert message.decode() == 7
        assert bus.subscribers("orders") == []


def test_parts_of_the_bus_without_an_event_loop() -> None:
    with tl.connect_blocking("memory:", name="script") as bus:

        @bus.on("t", name="picky", retry=tl.Retry(attempts=1))
        def picky(number: int) -> None:
            if number < 0:
                raise ValueError(number)

        sent = bus.publish("t", -1)
        bus.quiet()
        assert [letter.message.id for letter in bus.dead_letters] == [sent]
        assert len(bus.dead_letters) == 1
        (letter,) = bus.dead_letters.find(subscriber="picky")
        bus.dead_letters.replay(letter, payload=1)
        bus.quiet()
        assert bus.pending() == len(bus.dead_letters) == len(bus.orphans) == 0
        assert list(bus.router.rules()) == []
        assert bus.accounts()["picky"].delivered == 1
        assert bus.subscribers("t") == ["picky"]
        assert bus.link("news.*", "me")
        assert bus.unlink("news.*", "me")
        assert bus.replay_dead().count == 0
        assert bus.message("t", 1).topic == "t"


def test_an_interrupted_call_is_cancelled_in_the_thread_of_the_bus() -> None:
    ended: list[str] = []

    async def wait_for_ever() -> None:
        # As Ctrl-C does, while the main thread waits for this.
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(threading.current_thread().name)
            raise

    main = threading.get_ident()
    assert threading.current_thread() is threading.main_thread()
    with tl.connect_blocking(name="bus") as bus:
        with pytest.raises(KeyboardInterrupt):
            _ = bus.run(lambda _: wait_for_ever())
        # The cancellation was handed to the loop first.
        assert bus.publish("t")
        assert ended == ["trunkline bus"]


def test_an_error_of_a_call_keeps_nothing_alive() -> None:
    class Kept:
        pass

    def fail(bus: tl.Bus) -> None:
        kept = Kept()
        seen.append(weakref.ref(kept))
        raise ValueError("no")

    seen: list[weakref.ref[Kept]] = []
    with tl.connect_blocking() as bus:
        gc.disable()
        try:
            with pytest.raises(ValueError, match="no"):
                bus.run(fail)
            assert seen[0]() is None
        finally:
            gc.enable()


def test_a_call_that_comes_while_the_loop_ends_does_not_wait_for_ever() -> None:
    loop_thread = LoopThread("late")
    ending, gate = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    async def prepare() -> None:
        async def notice() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()

        loop = asyncio.get_running_loop()
        noticed.append(loop.create_task(notice()))
        # Ending waits for the threads of the loop.
        loop.run_in_executor(None, gate.wait)
        await asyncio.sleep(0)

    def call() -> None:
        try:
            loop_thread.call(asyncio.sleep(1000))
        except BaseException as error:
            outcome.append(error)

    noticed: list[asyncio.Task[None]] = []
    loop_thread.call(prepare())
    stopping = threading.Thread(target=loop_thread.stop)
    stopping.start()
    assert ending.wait(60)
    late = threading.Thread(target=call, daemon=True)
    late.start()
    while late.is_alive() and not loop_thread._calls:
        pass
    gate.set()
    late.join(60)
    stopping.join(60)
    assert isinstance(outcome[0], CancelledError | BusClosed)


def test_a_call_that_comes_with_the_end_of_the_loop_leaves_no_coroutine_behind() -> None:
    """Its task is created in the iteration in which the loop stops, so it is cancelled before its first step."""
    loop_thread = LoopThread("late")
    loop = cast(Any, loop_thread._loop)
    held, gate = threading.Event(), threading.Event()
    work = asyncio.sleep(1000)

    def hold() -> None:
        held.set()
        gate.wait()

    def call() -> None:
        with suppress(CancelledError, BusClosed):
            loop_thread.call(work)

    loop.call_soon_threadsafe(hold)
    assert held.wait(60)
    loop.call_soon_threadsafe(loop.stop)
    late = threading.Thread(target=call, daemon=True)
    late.start()
    while late.is_alive() and len(loop._ready) < 2:
        pass
    gate.set()
    late.join(60)
    loop_thread.stop()
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


def test_a_call_that_is_cancelled_before_it_begins_leaves_no_coroutine_behind() -> None:
    async def main() -> None:
        work = asyncio.sleep(1000)
        call = BlockingCall(work)
        call.start()
        call.cancel()
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
        await asyncio.sleep(0)

    asyncio.run(main())
