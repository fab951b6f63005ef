"""Producers and consumers: frames are read in place, loans are sent or dropped, and views are guarded."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.memory.children import child, go_on, line, run
from trunkline import memory
from trunkline.errors import (
    Closed,
    DuplicateName,
    InvalidPayload,
    InvalidSettings,
    MessageTooLarge,
    PayloadError,
    StreamClosed,
    StreamEmpty,
)
from trunkline.memory import ChannelSettings, Checksum, Wants
from trunkline.memory import frame as frame_module
from trunkline.memory.errors import FrameDamaged, LayoutMismatch, NoProducer, ProducerGone, SharedMemoryError, SlotsHeld

RECORD = np.dtype([("t", "f8"), ("image", "u2", (4, 4))])
NUMBERS = np.dtype(("i8", (3,)))


def test_a_record_is_written_and_read_in_place() -> None:
    with memory.producer("camera", schema=RECORD) as camera, memory.consumer("camera", schema=RECORD) as frames:
        with camera.loan() as loan:
            loan.data["t"] = 1.5
            loan.data["image"][1] = 7
        with frames.recv(1) as frame:
            assert (frame.seq, frame.data["t"], frame.data["image"].sum()) == (1, 1.5, 28)
            assert not frame.data.flags.writeable
            assert not frame.data.flags.owndata
            with pytest.raises(ValueError, match="read-only"):
                frame.data["t"] = 2
            with pytest.raises(ValueError, match="WRITEABLE"):
                frame.data.flags.writeable = True


@pytest.mark.parametrize("shape", [(), (5,), (480, 640)])
def test_arrays_of_fixed_shapes(shape: tuple[int, ...]) -> None:
    schema = np.dtype(("u2", shape))
    image = np.arange(int(np.prod(shape)), dtype="u2").reshape(shape)
    with memory.producer("camera", schema=schema, capacity=2) as camera, memory.consumer("camera") as frames:
        camera.send(image)
        with frames.recv(1) as frame:
            assert np.array_equal(frame.data, image)
            assert frame.data.shape == shape


def test_raw_bytes_have_any_size_up_to_a_slot() -> None:
    with memory.producer("log", schema=bytes, page_size=128) as log, memory.consumer("log", schema=bytes) as frames:
        for text in (b"", b"one", b"x" * 128):
            log.send(text)
            with frames.recv(1) as frame:
                assert bytes(frame.data) == text
                assert frame.data.readonly
        with pytest.raises(MessageTooLarge):
            log.send(b"x" * 129)
        with log.loan() as loan:
            loan.data[:4] = b"four"
            loan.length = 4
        assert bytes(frames.recv(1).data) == b"four"


def test_record_batches_with_dictionaries_are_views_of_the_slot() -> None:
    schema = pa.schema([("n", pa.int64()), ("kind", pa.dictionary(pa.int8(), pa.utf8()))])
    batch = pa.record_batch(
        [pa.array([1, 2, None]), pa.array(["a", "b", "a"]).dictionary_encode().cast(schema.field(1).type)],
        schema=schema,
    )
    with memory.producer("table", schema=schema, page_size=8192) as table, memory.consumer("table") as frames:
        before = pa.total_allocated_bytes()
        table.send(batch)
        with frames.recv(1) as frame:
            assert frame.data.equals(batch)
            assert pa.total_allocated_bytes() == before
        with pytest.raises(InvalidPayload):
            table.send(pa.record_batch({"n": [1]}))
        with pytest.raises(MessageTooLarge):
            table.send(
                pa.record_batch(
                    [pa.array(range(10_000)), pa.array(["a"] * 10_000).dictionary_encode().cast(schema.field(1).type)],
                    schema=schema,
                )
            )
        with pytest.raises(InvalidSettings), table.loan() as loan:
            loan.data  # noqa: B018


def test_wrong_values_are_refused_and_nothing_is_sent() -> None:
    with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
        with pytest.raises(InvalidPayload):
            numbers.send([1, 2])
        with pytest.raises(InvalidPayload):
            numbers.send([1.5, 2.5, 3.5])
        with pytest.raises(StreamEmpty):
            frames.recv(0)
        assert (numbers.metrics().writes, numbers.metrics().given_up) == (0, 2)


@pytest.mark.parametrize(
    ("schema", "bad", "good"),
    [
        (NUMBERS, [1, 2], [1, 2, 3]),
        (bytes, b"x" * 5000, b"x"),
        (bytes, 5, b"x"),
        (
            pa.schema([("n", pa.int64())]),
            pa.record_batch({"n": range(10_000)}),
            pa.record_batch({"n": [1]}),
        ),
    ],
    ids=str,
)
def test_an_error_that_is_kept_keeps_no_slot(schema: Any, bad: Any, good: Any) -> None:
    with memory.producer("any", schema=schema) as producer, memory.consumer("any") as frames:
        kept = []
        for _ in range(5):
            try:
                producer.send(bad)
            except PayloadError as error:
                kept.append(error)
        assert len(kept) == 5
        producer.send(good)
        assert frames.recv(1).seq == 1


def test_an_error_in_the_block_gives_the_slot_back() -> None:
    with memory.producer("numbers", schema=NUMBERS, capacity=1) as numbers, memory.consumer("numbers") as frames:
        for _ in range(50):
            with pytest.raises(ZeroDivisionError), numbers.loan() as loan:
                loan.data[:] = 9 // 0
        with pytest.raises(StreamEmpty):
            frames.recv(0)
        numbers.send([1, 2, 3])
        assert list(frames.recv(1).data) == [1, 2, 3]


def test_a_view_of_a_loan_that_outlives_it_sends_nothing() -> None:
    """Otherwise it could change a frame while others read it."""
    with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
        with pytest.raises(BufferError, match="nothing was sent"), numbers.loan() as loan:
            kept = loan.data[1:]
        kept[:] = 5
        with pytest.raises(StreamEmpty):
            frames.recv(0)
        with pytest.raises(BufferError):
            loan.data  # noqa: B018
        del kept
        numbers.send([1, 2, 3])
        assert list(frames.recv(1).data) == [1, 2, 3]


def test_two_loans_at_once_and_not_three() -> None:
    with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
        with numbers.loan() as one, numbers.loan() as two:
            one.data[:], two.data[:] = 1, 2
            with pytest.raises(SharedMemoryError, match="2 are in use"), numbers.loan():
                pass
        assert [frames.recv(1).data[0] for _ in range(2)] == [2, 1]


# The guard


def test_letting_go_while_a_view_lives_is_an_error_and_the_data_stay_valid() -> None:
    with memory.producer("numbers", schema=NUMBERS, capacity=2) as numbers, memory.consumer("numbers") as frames:
        numbers.send([1, 2, 3])
        frame = frames.recv(1)
        view = frame.data[1:]
        with pytest.raises(BufferError, match="frame 1"):
            frame.release()
        for number in range(50):
            numbers.send([number] * 3)
        assert list(view) == [2, 3]
        assert frames.metrics().held == 1
        del view
        assert frames.metrics().held == 0
        frame.release()
        with pytest.raises(BufferError, match="was released"):
            frame.data  # noqa: B018


@pytest.mark.parametrize(
    "wrap", [memoryview, lambda data: np.asarray(memoryview(data)), lambda data: pa.py_buffer(data)]
)
def test_whatever_wraps_a_view_keeps_the_slot(wrap: Any) -> None:
    with memory.producer("log", schema=bytes) as log, memory.consumer("log") as frames:
        log.send(b"hello")
        frame = frames.recv(1)
        wrapped = wrap(frame.data)
        with pytest.raises(BufferError):
            frame.release()
        for _ in range(40):
            log.send(b"other")
        assert bytes(wrapped) == b"hello"
        del wrapped


def test_closing_while_a_view_lives_is_an_error_and_the_data_stay_valid() -> None:
    with memory.producer("numbers", schema=NUMBERS, capacity=2) as numbers:
        opened = memory.consumer("numbers")
        frames = opened.__enter__()
        numbers.send([1, 2, 3])
        view = frames.recv(1).data
        with pytest.raises(BufferError, match="1 views"):
            opened.__exit__(None, None, None)
        for number in range(50):
            numbers.send([number] * 3)
        assert list(view) == [1, 2, 3]
        del view


def test_a_frame_that_is_not_released_is_released_by_closing() -> None:
    with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
        numbers.send([1, 2, 3])
        frame = frames.recv(1)
        assert frame.data[0] == 1
    with pytest.raises(BufferError):
        frame.data  # noqa: B018
    with pytest.raises(StreamClosed):
        frames.recv(0)
    with pytest.raises(Closed):
        numbers.send([1, 2, 3])


def test_views_outlive_everything_without_a_crash() -> None:
    """The producer is gone, the consumer is closed, and the view is unchanged: in its own process."""
    out = run("""
        with memory.producer("numbers", schema=np.dtype(("i8", (3,)))) as numbers:
            try:
                with memory.consumer("numbers") as frames:
                    numbers.send([1, 2, 3])
                    view = frames.recv(1).data
            except BufferError:
                say("refused")
        del numbers, frames
        gc.collect()
        with memory.producer("numbers", schema=np.dtype(("i8", (3,)))) as numbers:
            for number in range(100):
                numbers.send([number] * 3)
            say(view.tolist(), view.sum())
            try:
                view[0] = 1
            except ValueError as error:
                say("read-only")
        del view
    """)
    assert out.splitlines() == ["refused", "[1, 2, 3] 6", "read-only"]


def test_a_view_outlives_a_producer_that_was_killed() -> None:
    with child("""
        with memory.producer("numbers", schema=np.dtype(("i8", (1000,)))) as numbers:
            say("there")
            wait()
            numbers.send(np.arange(1000))
            say("sent")
            wait()
    """) as process:
        line(process)
        with memory.consumer("numbers") as frames:
            go_on(process)
            frame = frames.recv(5)
            process.kill()
            with pytest.raises(ProducerGone) as gone:
                frames.recv(5)
            assert gone.value.died
            with memory.producer("numbers", schema=np.dtype(("i8", (1000,)))) as numbers:
                numbers.send(np.zeros(1000, "i8"))
                assert frame.data.sum() == 499500
                with frames.recv(1) as fresh:
                    assert fresh.data.sum() == 0


def test_a_consumer_that_never_lets_go_is_told_and_named(caplog: pytest.LogCaptureFixture) -> None:
    settings = ChannelSettings(held=2, held_too_long_s=0.000001)
    with (
        memory.producer("numbers", schema=NUMBERS, settings=settings) as numbers,
        memory.consumer("numbers", name="hoarder") as frames,
    ):
        for _ in range(5):
            numbers.send([1, 2, 3])
        with caplog.at_level(logging.WARNING, "trunkline.memory"):
            held = [frames.recv(1) for _ in range(2)]
            with pytest.raises(SlotsHeld) as error:
                frames.recv(1)
        assert (error.value.held, error.value.oldest) == (2, 1)
        assert "the consumer hoarder of numbers has held frame 1" in caplog.text
        found = frames.metrics()
        assert (found.held, found.oldest_held and found.oldest_held.seq) == (2, 1)
        held[0].release()
        assert frames.recv(1).seq == 3
        for _ in range(100):
            numbers.send([1, 2, 3])


# Policies, and what consumers want


def seqs(frames: memory.BlockingFrameConsumer) -> list[int]:
    found = []
    try:
        while True:
            found.append(frames.recv(0).seq)
    except StreamEmpty:
        return found


@pytest.mark.parametrize(
    ("policy", "wants", "expected", "overruns"),
    [
        ("Single", Wants.ALL, [10], 8),
        ("DoubleBuffer", Wants.ALL, [9, 10], 7),
        ("RingBuffer", Wants.ALL, [7, 8, 9, 10], 5),
        ("Single", Wants.LATEST, [10], 0),
        ("RingBuffer", Wants.LATEST, [10], 0),
    ],
)
def test_what_is_kept_and_what_is_overrun(policy: str, wants: Wants, expected: list[int], overruns: int) -> None:
    with (
        memory.producer("numbers", schema=NUMBERS, policy=policy, capacity=4) as numbers,
        memory.consumer("numbers", wants=wants) as frames,
    ):
        numbers.send([0, 0, 0])
        assert seqs(frames) == [1]
        for _ in range(9):
            numbers.send([0, 0, 0])
        assert seqs(frames) == expected
        assert frames.metrics().overruns == overruns
        assert frames.metrics().reads == 1 + len(expected)


def test_a_late_consumer_of_the_latest_gets_it_when_the_producer_serves() -> None:
    with memory.producer("state", schema=bytes, policy="Single") as state:
        state.send(b"on")
        with memory.consumer("state", wants="latest") as frames:
            with pytest.raises(StreamEmpty):
                frames.recv(0)
            state.serve()
            assert bytes(frames.recv(1).data) == b"on"
        with memory.consumer("state", wants="all") as frames:
            state.serve()
            with pytest.raises(StreamEmpty):
                frames.recv(0)


def test_what_a_consumer_may_want() -> None:
    with pytest.raises(InvalidSettings, match="latest, all, every"):
        memory.consumer("camera", wants="some")


# Who is there


def test_schemas_are_compared_at_attach_and_the_field_is_named() -> None:
    with memory.producer("camera", schema=RECORD, settings=ChannelSettings(version="2.0")):
        other = np.dtype([("t", "f4"), ("image", "u2", (4, 4))])
        with pytest.raises(LayoutMismatch) as error, memory.consumer("camera", schema=other, version="1.0"):
            pass
        assert "version 1.0" in str(error.value)
        assert "version 2.0" in str(error.value)
        assert error.value.differences[0] == "field 't': expected is <f4 at byte 0, the channel has <f8 at byte 0"


def test_a_schema_that_is_too_large_for_the_service_is_found_in_the_file_of_the_producer() -> None:
    rng = np.random.default_rng(7)
    names = [f"field_{rng.integers(1 << 60)}" for _ in range(500)]
    wide, other = (np.dtype([(name, kind) for name in names]) for kind in ("f8", "i8"))
    with memory.producer("camera", schema=wide) as camera:
        camera.send(np.zeros((), wide))
        with memory.consumer("camera") as frames:
            camera.send(np.zeros((), wide))
            with frames.recv(1) as frame:
                assert frame.data.dtype == wide
        with pytest.raises(LayoutMismatch, match=f"field '{names[0]}'"), memory.consumer("camera", schema=other):
            pass


def test_a_producer_that_restarts_with_a_changed_schema_is_refused_while_consumers_keep_the_old_one() -> None:
    changed = np.dtype([("t", "f8"), ("image", "u2", (8, 8))])
    with memory.producer("camera", schema=RECORD) as camera:
        attached = memory.consumer("camera")
        frames = attached.__enter__()
        camera.send(np.ones((), RECORD))
    with pytest.raises(LayoutMismatch, match="field 'image'"), memory.producer("camera", schema=changed):
        pass
    with pytest.raises(LayoutMismatch, match="capacity"), memory.producer("camera", schema=RECORD, capacity=3):
        pass
    with frames.recv(1) as frame:
        assert frame.data["t"] == 1
    with pytest.raises(ProducerGone, match="has closed"):
        frames.recv(1)
    with memory.producer("camera", schema=RECORD) as camera:
        camera.send(np.full((), 2, RECORD))
        with frames.recv(1) as frame:
            assert (frame.seq, frame.data["t"]) == (1, 2)
    attached.__exit__(None, None, None)
    with memory.producer("camera", schema=changed):
        pass


def test_producers_that_come_and_go_while_nobody_looks_are_one_that_has_left() -> None:
    """Wake-ups are unordered and coalesced: the last state counts. Its frames were removed with it."""
    with memory.producer("numbers", schema=NUMBERS):
        opened = memory.consumer("numbers")
        frames = opened.__enter__()
    for _ in range(3):
        with memory.producer("numbers", schema=NUMBERS) as numbers:
            numbers.send([1, 2, 3])
    assert list(frames) == []
    with memory.producer("numbers", schema=NUMBERS) as numbers:
        with pytest.raises(StreamEmpty):
            frames.recv(0.01)
        numbers.send([1, 2, 3])
        assert frames.recv(1).seq == 1
        opened.__exit__(None, None, None)


def test_both_sides_count() -> None:
    with memory.producer("numbers", schema=NUMBERS, capacity=4) as numbers:
        found = numbers.metrics()
        assert (found.writes, found.last_frame_s, found.occupancy, found.consumers) == (0, None, 0.0, [])
        assert (found.queue, found.slots) == (4, 4 + 3 + 16)
        with memory.consumer("numbers", wants="every", name="plotter") as frames:
            assert frames.metrics().last_frame_s is None
            numbers.metrics()
            for _ in range(3):
                numbers.send([1, 2, 3])
            first = frames.recv(1)
            found = numbers.metrics()
            assert (found.writes, found.written_bytes, found.occupancy) == (3, 72, 0.5)
            assert found.last_frame_s is not None
            (consumer,) = found.consumers
            assert (consumer.name, consumer.pid, consumer.wants_every) == ("plotter", os.getpid(), True)
            assert (consumer.reads, consumer.waiting, consumer.held) == (1, 2, 1)
            assert consumer.oldest_held is not None
            assert (consumer.oldest_held.seq, consumer.oldest_held.held_s > 0) == (1, True)
            first.release()
            own = frames.metrics()
            assert (own.reads, own.overruns, own.held, own.oldest_held) == (1, 0, 0, None)
            assert own.last_frame_s is not None


@pytest.mark.parametrize("wants", Wants)
def test_a_consumer_that_waits_has_reported_all(wants: Wants) -> None:
    with memory.producer("numbers", schema=NUMBERS, capacity=12) as numbers:
        with memory.consumer("numbers", wants=wants) as frames:
            numbers.metrics()
            numbers.send([1, 2, 3])
            frames.recv(1)
            with pytest.raises(StreamEmpty):
                frames.recv(0.5)
            (found,) = numbers.metrics().consumers
            assert (found.reads, found.waiting, found.held) == (1, 0, 0)

        async def in_a_loop() -> None:
            async with memory.consumer("numbers", wants=wants) as frames:
                numbers.metrics()
                numbers.send([1, 2, 3])
                await frames.recv(1)
                with pytest.raises(StreamEmpty):
                    await frames.recv(0.5)
                (found,) = numbers.metrics().consumers
                assert (found.reads, found.waiting, found.held) == (1, 0, 0)

        asyncio.run(in_a_loop())


def test_a_second_producer_is_refused() -> None:
    with memory.producer("camera", schema=RECORD) as camera, memory.consumer("camera") as frames:
        with pytest.raises(DuplicateName), memory.producer("camera", schema=RECORD):
            pass
        camera.send(np.ones((), RECORD))
        assert frames.recv(1).seq == 1


def test_nobody_produces() -> None:
    with pytest.raises(NoProducer), memory.consumer("camera"):
        pass


def test_twenty_consumers() -> None:
    settings = ChannelSettings(consumers=20)
    with memory.producer("numbers", schema=NUMBERS, settings=settings, capacity=4) as numbers:
        opened = [memory.consumer("numbers") for _ in range(20)]
        consumers = [each.__enter__() for each in opened]
        for _ in range(3):
            numbers.send([1, 2, 3])
        assert [seqs(each) for each in consumers] == [[1, 2, 3]] * 20
        assert len(numbers.metrics().consumers) == 20
        for each in opened:
            each.__exit__(None, None, None)
        assert numbers.metrics().consumers == []


# Checksums


@pytest.mark.parametrize("mode", Checksum)
def test_checksums(mode: Checksum, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        memory.producer("log", schema=bytes, settings=ChannelSettings(checksum=mode)) as log,
        memory.consumer("log") as frames,
    ):
        log.send(b"good")
        with frames.recv(1) as frame:
            frame.verify()
        with monkeypatch.context() as patch:
            patch.setattr(frame_module, "checksum_of", lambda memory: 1)
            for _ in range(4):
                log.send(b"bad")
        if mode is Checksum.ENFORCED:
            # They are kept, and keep no slot.
            errors = []
            for _ in range(4):
                with pytest.raises(FrameDamaged) as error:
                    frames.recv(1)
                errors.append(error.value)
            assert [each.seq for each in errors] == [2, 3, 4, 5]
            return
        with frames.recv(1) as frame:
            if mode is Checksum.ON_DEMAND:
                with pytest.raises(FrameDamaged, match="frame 2"):
                    frame.verify()
            else:
                frame.verify()


# In an event loop


def test_frames_in_an_event_loop() -> None:
    async def main() -> list[int]:
        async with (
            memory.producer("numbers", schema=NUMBERS, capacity=4) as numbers,
            memory.consumer("numbers", wants="every") as frames,
        ):

            async def produce() -> None:
                for number in range(500):
                    async with numbers.loan() as loan:
                        loan.data[:] = number

            task = asyncio.create_task(produce())
            found = []
            async for frame in frames:
                found.append(int(frame.data[0]))
                if len(found) == 500:
                    break
            del frame
            await task
            assert frames.metrics().overruns == 0
            return found

    assert asyncio.run(main()) == list(range(500))


def test_iteration_ends_when_the_producer_closes() -> None:
    async def main() -> list[int]:
        async with memory.producer("numbers", schema=NUMBERS) as numbers:
            opened = memory.consumer("numbers")
            frames = await opened.__aenter__()
            for _ in range(3):
                await numbers.send([1, 2, 3])
        found = [frame.seq async for frame in frames]
        await opened.__aexit__(None, None, None)
        return found

    assert asyncio.run(main()) == [1, 2, 3]
    with memory.producer("numbers", schema=NUMBERS) as numbers:
        opened = memory.consumer("numbers")
        frames = opened.__enter__()
        numbers.send([1, 2, 3])
    assert [frame.seq for frame in frames] == [1]
    opened.__exit__(None, None, None)


def test_waiting_in_an_event_loop_ends_by_time_by_cancelling_and_by_a_frame() -> None:
    async def main() -> None:
        async with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
            with pytest.raises(StreamEmpty):
                await frames.recv(0.01)
            waiting = asyncio.create_task(frames.recv())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            waiting = asyncio.create_task(frames.recv(5))
            await asyncio.sleep(0)
            await numbers.send([1, 2, 3])
            assert (await waiting).seq == 1

    asyncio.run(main())


def test_a_late_consumer_of_an_async_producer_gets_the_latest_at_once() -> None:
    async def main() -> None:
        async with memory.producer("state", schema=bytes, policy="Single") as state:
            await state.send(b"on")
            async with memory.consumer("state", wants="latest") as frames:
                assert bytes((await frames.recv(5)).data) == b"on"

    asyncio.run(main())


def steal_wake_up(descriptor: int) -> None:
    """A state of the engine that happens sometimes: it counts as notified, and its socket is empty."""
    with socket.socket(fileno=os.dup(descriptor)) as stolen:
        assert stolen.recv(32)


def test_a_wake_up_that_the_engine_loses_is_made_up_for() -> None:
    with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
        numbers.send([1, 2, 3])
        steal_wake_up(frames._receiver._ports.descriptor)
        assert frames.recv(1).seq == 1
        later = threading.Timer(0.1, numbers.send, ([4, 5, 6],))
        later.start()
        begun = time.monotonic()
        assert frames.recv(20).seq == 2
        assert time.monotonic() - begun < 5
        later.join()


def test_a_wake_up_that_the_engine_loses_is_made_up_for_in_an_event_loop() -> None:
    async def main() -> None:
        async with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
            await numbers.send([1, 2, 3])
            steal_wake_up(frames._receiver._ports.descriptor)
            assert (await frames.recv(1)).seq == 1
            receiving = asyncio.create_task(frames.recv(5))
            await asyncio.sleep(0.1)
            await numbers.send([4, 5, 6])
            assert (await receiving).seq == 2

    asyncio.run(main())


def test_credit_that_the_engine_loses_is_made_up_for() -> None:
    with (
        memory.producer("numbers", schema=NUMBERS, capacity=1) as numbers,
        memory.consumer("numbers", wants="every") as frames,
    ):
        numbers.metrics()
        numbers.send([1, 2, 3])
        frames.recv(1)
        steal_wake_up(numbers._sender._ports.credit_descriptor)
        numbers.send([4, 5, 6])
        later = threading.Timer(0.1, lambda: frames.recv(1))
        later.start()
        numbers.send([7, 8, 9])
        assert numbers.metrics().cut_off == 0
        later.join()


def test_waiting_costs_no_processor_time() -> None:
    out = run("""
        import asyncio, resource
        def used():
            return time.process_time()
        with memory.producer("numbers", schema=bytes) as numbers, memory.consumer("numbers") as frames:
            before = used()
            try:
                frames.recv(1.0)
            except tl.StreamEmpty:
                say(used() - before < 0.05)
        async def main():
            async with memory.producer("numbers", schema=bytes), memory.consumer("numbers") as frames:
                before = used()
                try:
                    await frames.recv(1.0)
                except tl.StreamEmpty:
                    say(used() - before < 0.05)
        asyncio.run(main())
    """)
    assert out.split() == ["True", "True"]


def test_nothing_is_left_to_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        with memory.producer("numbers", schema=NUMBERS) as numbers, memory.consumer("numbers") as frames:
            for _ in range(10):
                numbers.send([1, 2, 3])
                frame = frames.recv(1)
                assert frame.data[0] == 1
                del frame
                assert frames.metrics().held == 0
    finally:
        gc.enable()
