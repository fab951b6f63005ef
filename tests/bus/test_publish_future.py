"""The future of a publish from a thread behaves like any other, although most of it is created on demand."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ALL_COMPLETED, CancelledError, Future, as_completed, wait

import pytest

import trunkline as tl
from trunkline.bus.threads import PublishFuture

PATIENCE_S = 20


def new() -> PublishFuture:
    return PublishFuture(threading.Lock())


def test_nothing_is_made_for_a_future_that_nobody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Counted(threading.Condition):
        def __init__(self) -> None:
            made.append(self)
            super().__init__()

    async def main() -> None:
        async with tl.connect() as bus, bus.subscribe("t") as stream:
            door = bus.from_thread()
            monkeypatch.setattr(threading, "Condition", Counted)
            futures = [door.publish("t", n) for n in range(50)]
            ids = [(await stream.recv(PATIENCE_S)).id for _ in futures]  # type: ignore[union-attr]
            assert not made
            assert [await asyncio.wrap_future(future) for future in futures] == ids
            assert len(made) == 50

    asyncio.run(main())


def test_a_result_that_came_before_somebody_looked() -> None:
    future = new()
    assert future.set_running_or_notify_cancel()
    future.set_result("id")
    seen: list[Future[str]] = []
    future.add_done_callback(seen.append)
    assert seen == [future]
    assert future.done()
    assert not future.running()
    assert not future.cancel()
    assert future.result(0) == "id"
    assert "finished" in repr(future)


def test_a_result_that_comes_while_somebody_waits() -> None:
    future = new()
    seen: list[str] = []
    future.add_done_callback(lambda done: seen.append(done.result(0)))
    waiting = threading.Thread(target=lambda: seen.append(future.result(PATIENCE_S)))
    waiting.start()
    assert future.set_running_or_notify_cancel()
    assert future.running()
    future.set_result("id")
    waiting.join(PATIENCE_S)
    assert seen == ["id", "id"]


@pytest.mark.parametrize("looked_at", [False, True])
def test_an_error(looked_at: bool) -> None:
    future = new()
    if looked_at:
        assert not future.done()
    assert future.set_running_or_notify_cancel()
    future.set_exception(tl.BusClosed("b"))
    with pytest.raises(tl.BusClosed):
        future.result(0)


def test_what_is_cancelled_in_time_is_not_published_and_what_has_begun_is() -> None:
    cancelled, begun = new(), new()
    assert cancelled.cancel()
    assert not cancelled.set_running_or_notify_cancel()
    with pytest.raises(CancelledError):
        cancelled.result(0)
    assert begun.set_running_or_notify_cancel()
    assert not begun.cancel()
    begun.set_result("id")
    assert begun.result(0) == "id"


def test_a_cancelled_publish_reaches_nobody() -> None:
    async def main() -> None:
        async with tl.connect() as bus, bus.subscribe("t") as stream:
            door = bus.from_thread()
            first, second, third = [door.publish("t", n) for n in range(3)]
            assert second.cancel()
            assert [(await stream.recv(PATIENCE_S)).decode() for _ in range(2)] == [0, 2]  # type: ignore[union-attr]
            assert await asyncio.wrap_future(first) != await asyncio.wrap_future(third)

    asyncio.run(main())


def test_many_are_waited_for_together() -> None:
    futures = [new() for _ in range(4)]
    futures[0].set_result("0")
    futures[1].done()

    def finish_the_rest() -> None:
        for n in range(1, 4):
            futures[n].set_result(str(n))

    finish = threading.Thread(target=finish_the_rest)
    finish.start()
    done, left = wait(futures, PATIENCE_S, ALL_COMPLETED)
    finish.join(PATIENCE_S)
    assert (done, left) == (set(futures), set())
    assert sorted(future.result(0) for future in as_completed(futures, PATIENCE_S)) == ["0", "1", "2", "3"]


def test_looking_and_finishing_at_the_same_moment_loses_nothing() -> None:
    """Two threads read each future while a third one completes it."""
    lock = threading.Lock()
    futures = [PublishFuture(lock) for _ in range(2000)]
    found: list[list[str]] = []

    def look() -> None:
        found.append([future.result(PATIENCE_S) for future in futures])

    def finish() -> None:
        for n, future in enumerate(futures):
            assert future.set_running_or_notify_cancel()
            future.set_result(str(n))

    threads = [threading.Thread(target=work) for work in (look, look, finish)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == [[str(n) for n in range(2000)]] * 2


def test_an_unknown_attribute_is_refused() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        new().nonsense  # noqa: B018
