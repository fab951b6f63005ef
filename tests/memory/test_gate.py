"""Consumers that want every frame: the producer waits for the slowest, never for one that left, died or is stuck."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.children import child, go_on, line
from trunkline import memory
from trunkline.errors import StreamEmpty
from trunkline.memory import ChannelSettings
from trunkline.memory.errors import CutOff
from trunkline.memory.gate import Gate

NUMBER = np.dtype(("i8", ()))


# The bookkeeping


@given(
    queue=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(["send", "take", "join", "leave"]), st.integers(0, 2))),
)
def test_no_queue_ever_holds_more_than_it_has_room_for(queue: int, steps: list[tuple[str, int]]) -> None:
    gate = Gate(queue, 10)
    waiting: dict[int, int] = {}
    sent = 0
    for what, id in steps:
        if what == "send" and not gate.full(sent):
            sent += 1
            waiting = {each: count + 1 for each, count in waiting.items()}
        elif what == "take" and waiting.get(id):
            waiting[id] -= 1
            gate.move(id, sent - waiting[id], 0)
        elif what == "join" and id not in gate:
            gate.join(id, sent, 0)
            waiting[id] = 0
        elif what == "leave":
            assert gate.leave(id) == (waiting.pop(id, None) is not None)
        assert all(count <= queue for count in waiting.values())
        assert gate.full(sent) == [each for each, count in waiting.items() if count == queue]
        assert set(gate.ids) == set(waiting)


def test_one_is_stuck_when_it_has_not_moved_while_the_producer_waited() -> None:
    gate = Gate(2, stuck_ns=10)
    gate.join(1, 0, now_ns=0)
    assert gate.stuck(1, 0, 100) == []
    assert gate.stuck(2, 95, 100) == []
    assert gate.patience_ns(2, 95, 100) == 5
    assert gate.stuck(2, 90, 100) == [1]
    gate.move(1, 1, 99)
    gate.move(1, 0, 100)
    assert gate.full(2) == []
    assert gate.full(3) == [1]
    assert gate.stuck(3, 0, 100) == []
    assert gate.stuck(3, 0, 109) == [1]


# Between processes

TAKER = """
with memory.consumer("numbers", wants="every", name="taker") as frames:
    say("there")
    wait()
    for count in range({count}):
        frame = frames.recv(10)
        assert frame.data == count, (frame.data, count)
        if count % 10 == 0:
            time.sleep({pause_s})
        frame.release()
    say("took", count + 1, frames.metrics().overruns)
    wait()
"""


def attached(numbers: memory.BlockingFrameProducer, consumers: int) -> None:
    """Wait until the producer knows them: earlier frames are not for them."""
    ends = time.monotonic() + 10
    while len(numbers.metrics().consumers) < consumers:
        assert time.monotonic() < ends
        numbers.serve(1.0)


@pytest.mark.parametrize(("policy", "capacity"), [("RingBuffer", 8), ("Single", 1), ("DoubleBuffer", 1)])
def test_the_slowest_of_three_processes_gets_everything(policy: str, capacity: int) -> None:
    with (
        memory.producer("numbers", schema=NUMBER, policy=policy, capacity=capacity) as numbers,
        child(TAKER.format(count=300, pause_s=0.003)) as slow,
        child(TAKER.format(count=300, pause_s=0)) as quick,
        memory.consumer("numbers", wants="latest") as latest,
    ):
        for process in (slow, quick):
            assert line(process) == "there"
            go_on(process)
        attached(numbers, 3)
        for number in range(300):
            numbers.send(number)
        for process in (slow, quick):
            assert line(process) == "took 300 0"
        assert latest.recv(0).data == 299
        assert numbers.metrics().cut_off == 0


def test_frames_from_before_the_gate_are_not_half_a_series() -> None:
    """For any frames while a consumer attaches: its frames start somewhere, and then have no gap."""
    with memory.producer("numbers", schema=NUMBER, capacity=2) as numbers:
        stop = threading.Event()

        def produce() -> None:
            count = 0
            while not stop.is_set():
                numbers.send(count)
                count += 1

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            for _ in range(5):
                with memory.consumer("numbers", wants="every") as frames:
                    first = frames.recv(5).seq
                    for expected in range(first + 1, first + 50):
                        assert frames.recv(5).seq == expected
                    assert frames.metrics().overruns == 0
        finally:
            stop.set()
            thread.join()


def fill(numbers: memory.BlockingFrameProducer, count: int) -> None:
    for number in range(count):
        numbers.send(number)


def seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def test_a_consumer_that_dies_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    settings = ChannelSettings(stuck_s=60.0)
    with memory.producer("numbers", schema=NUMBER, capacity=4, settings=settings) as numbers:
        with child(TAKER.format(count=300, pause_s=0)) as process:
            line(process)
            attached(numbers, 1)
            fill(numbers, 4)
            threading.Timer(0.2, process.kill).start()
            assert seconds(lambda: numbers.send(4)) < 30
        fill(numbers, 100)
        assert numbers.metrics().cut_off == 1
        assert numbers.metrics().consumers == []
    assert f"the consumer taker of numbers (pid {process.pid}) died" in caplog.text


def test_a_consumer_that_leaves_is_not_waited_for() -> None:
    settings = ChannelSettings(stuck_s=60.0)
    with memory.producer("numbers", schema=NUMBER, capacity=4, settings=settings) as numbers:
        opened = memory.consumer("numbers", wants="every")
        frames = opened.__enter__()
        attached(numbers, 1)
        fill(numbers, 4)
        threading.Timer(0.2, opened.__exit__, (None, None, None)).start()
        assert seconds(lambda: fill(numbers, 100)) < 30
        assert numbers.metrics().cut_off == 0
        assert frames.metrics().reads == 0


def test_a_stuck_consumer_is_cut_off_and_both_sides_say_so(caplog: pytest.LogCaptureFixture) -> None:
    settings = ChannelSettings(stuck_s=0.2)
    with (
        memory.producer("numbers", schema=NUMBER, capacity=4, settings=settings) as numbers,
        memory.consumer("numbers", wants="every", name="sleeper") as frames,
    ):
        fill(numbers, 1)
        assert frames.recv(1).seq == 1
        with caplog.at_level(logging.ERROR, "trunkline.memory"):
            assert 0.2 <= seconds(lambda: fill(numbers, 6)) < 30
        assert "the consumer sleeper of numbers" in caplog.text
        assert numbers.metrics().cut_off == 1
        # It gets what was sent while it was waited for, as far as it is not overwritten, and is told then.
        found: list[int] = []
        with pytest.raises(CutOff) as error:
            found.extend(frame.seq for frame in frames)
        assert found == sorted(found)
        assert error.value.after == (found[-1] if found else 1)
        with pytest.raises(CutOff):
            frames.recv(1)


def test_a_stuck_consumer_is_cut_off_in_an_event_loop_too() -> None:
    async def main() -> None:
        settings = ChannelSettings(stuck_s=0.2)
        async with (
            memory.producer("numbers", schema=NUMBER, capacity=2, settings=settings) as numbers,
            memory.consumer("numbers", wants="every") as frames,
        ):
            for number in range(10):
                await numbers.send(number)
            assert numbers.metrics().cut_off == 1
            with pytest.raises(CutOff):
                [frame.seq async for frame in frames]

    asyncio.run(main())


def test_a_producer_that_never_waits_forgets_the_dead() -> None:
    with memory.producer("numbers", schema=NUMBER) as numbers:
        before = len(os.listdir("/proc/self/fd"))
        for count in range(4):
            with child("""
                with memory.consumer("numbers"):
                    say("there")
                    wait()
            """) as process:
                line(process)
                numbers.send(count)
        # That of the last one, which has no successor.
        assert len(numbers._sender._consumers) == 1
        assert len(os.listdir("/proc/self/fd")) < before + 15
        assert numbers.metrics().consumers == []


def test_a_consumer_that_wants_all_is_never_waited_for() -> None:
    with (
        memory.producer("numbers", schema=NUMBER, capacity=4) as numbers,
        memory.consumer("numbers", wants="all") as frames,
    ):
        assert seconds(lambda: fill(numbers, 1000)) < 5
        assert frames.recv(0).seq == 997
        # What came before its first frame was not its own to count.
        for expected in (998, 999, 1000):
            assert frames.recv(0).seq == expected
        with pytest.raises(StreamEmpty):
            frames.recv(0)


def test_a_producer_that_closes_at_once_has_lost_nothing_for_those_it_waited_for() -> None:
    with memory.producer("numbers", schema=NUMBER, capacity=4):
        opened = memory.consumer("numbers", wants="every")
        frames = opened.__enter__()
    assert list(frames) == []
    with memory.producer("numbers", schema=NUMBER, capacity=4) as numbers:
        # The consumer notices the new producer, and has taken nothing of it when that has gone.
        frames._receiver.see(waited=False)
        fill(numbers, 4)
        assert numbers.metrics().consumers[0].waiting == 4
    assert [frame.seq for frame in frames] == [1, 2, 3, 4]
    opened.__exit__(None, None, None)


def test_a_gating_consumer_goes_on_with_the_next_producer() -> None:
    with memory.producer("numbers", schema=NUMBER, capacity=4) as numbers:
        opened = memory.consumer("numbers", wants="every")
        frames = opened.__enter__()
        numbers.send(1)
        assert frames.recv(1).seq == 1
    assert list(frames) == []
    with memory.producer("numbers", schema=NUMBER, capacity=4) as numbers:
        with pytest.raises(StreamEmpty):
            frames.recv(0.05)
        attached(numbers, 1)
        thread = threading.Thread(target=fill, args=(numbers, 100))
        thread.start()
        assert [frames.recv(5).seq for _ in range(100)] == list(range(1, 101))
        thread.join()
        assert frames.metrics().overruns == 0
        opened.__exit__(None, None, None)
