"""A lone publish is committed in the event loop's thread while the disk is fast, otherwise in the writer's thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.journals import ALWAYS_S, BadDisk, Clock, broker_of, texts
from trunkline.errors import NotStored
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalSettings, Reader, Sync
from trunkline.journal.broker import SOON
from trunkline.journal.database import FILE
from trunkline.journal.writer import MAX_HERE, MAX_IN_A_ROW, Database, Job

FAST_S = 0.0002
SLOW_S = 0.05
ENOUGH = 30
"""So many fast commits, and the disk is known to be fast."""


class VirtualDisk:
    """Each commit takes `takes_s` of the journal's clock. `in_loop`: whether the event loop's thread made it."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self.takes_s = FAST_S
        self.in_loop: list[bool] = []
        self._clock = clock
        self._loop_thread = threading.get_ident()
        self._try = journal.writer._try
        journal.writer._try = self._slowly  # type: ignore[method-assign]  # how long it takes is all that is changed

    def _slowly(self, jobs: Sequence[Job]) -> Exception | None:
        return self._try([*jobs, TakesTime(self)])

    def spin(self) -> None:
        self.in_loop.append(threading.get_ident() == self._loop_thread)
        self._clock.pass_s(self.takes_s)


class TakesTime:
    size = 0

    def __init__(self, disk: VirtualDisk) -> None:
        self._disk = disk

    def write(self, database: Database) -> None:
        self._disk.spin()

    def done(self, error: Exception | None) -> None: ...


@asynccontextmanager
async def opened(
    directory: Path, commit_in_loop_s: float = 0.001, flush_s: float = 60.0
) -> AsyncIterator[tuple[tl.Bus, Journal, VirtualDisk]]:
    """A bus whose journal has its thread. Fates are written with publishes, so that each commit belongs to the test."""
    clock = Clock()
    settings = JournalSettings(sync=Sync.SYSTEM, commit_in_loop_s=commit_in_loop_s, flush_s=flush_s, seal=False)
    with Journal(directory, settings, world=clock.world) as journal:
        ready(journal)
        async with tl.connect("memory:", journal=journal) as bus:
            yield bus, journal, VirtualDisk(journal, clock)


def ready(journal: Journal) -> None:
    """Return when the writer has prepared its log, and is idle."""
    journal.writer.call(lambda database: None).result(30)


async def publish(bus: tl.Bus, count: int, topic: str = "a") -> None:
    for number in range(count):
        await bus.publish(topic, b"%d" % number)


def hold(journal: Journal) -> Callable[[], None]:
    """Keep the writer busy until the returned function is called."""
    held, go_on = threading.Event(), threading.Event()

    def wait(database: Database) -> None:
        held.set()
        go_on.wait(30)

    journal.writer.call(wait)
    assert held.wait(30)
    return go_on.set


def test_the_loop_commits_when_the_disk_is_known_to_be_fast(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (bus, journal, disk):
            await bus.publish("a", b"first")
            assert disk.in_loop == [False]
            await publish(bus, ENOUGH)
            disk.in_loop.clear()
            await publish(bus, 10)
            assert disk.in_loop == [True] * 10
            assert journal.writer.commits_in_loop >= 10

    asyncio.run(main())


def test_a_disk_that_becomes_slow_is_left_to_the_writer_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (bus, _, disk):
            await publish(bus, ENOUGH)
            disk.in_loop.clear()
            disk.takes_s = SLOW_S
            await publish(bus, 20)
            assert disk.in_loop == [True, *[False] * 19]
            disk.in_loop.clear()
            disk.takes_s = FAST_S
            await publish(bus, ENOUGH)
            assert disk.in_loop[:5] == [False] * 5
            assert disk.in_loop[-1]

    asyncio.run(main())


@pytest.mark.parametrize(("takes_s", "hands_over"), [(FAST_S, True), (SLOW_S, False)], ids=["fast", "slow"])
def test_half_of_a_pipeline_is_written_while_the_other_half_is_published(
    tmp_path: Path, takes_s: float, hands_over: bool
) -> None:
    async def main() -> None:
        async with opened(tmp_path, commit_in_loop_s=0) as (bus, journal, disk):
            disk.takes_s = takes_s
            await publish(bus, ENOUGH)
            go_on = hold(journal)
            waiting = journal.writer._waiting
            async with bus.pipeline(2 * SOON) as pipe:
                for number in range(SOON):
                    await pipe.publish("a", b"%d" % number)
                    assert not waiting, "all of them in one turn of the event loop"
                ids = [await pipe.publish("a", b"%d" % SOON)]
                assert bool(waiting) is hands_over, "two slow commits take longer than one"
                ids += [await pipe.publish("a", b"%d" % number) for number in range(SOON + 1, 2 * SOON - 1)]
                go_on()
            kept = list(journal.reader.messages("a"))[ENOUGH:]
            assert texts(kept) == [str(number) for number in range(2 * SOON - 1)]
            assert [message.id for message in kept[SOON:]] == ids
            assert bus.stats().total_messages == ENOUGH + 2 * SOON - 1

    asyncio.run(main())


def test_a_disk_that_was_never_fast_has_never_kept_the_loop_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (bus, _, disk):
            disk.takes_s = SLOW_S
            await publish(bus, 2 * ENOUGH)
            assert not any(disk.in_loop)

    asyncio.run(main())


def test_zero_turns_it_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, commit_in_loop_s=0.0) as (bus, journal, disk):
            disk.takes_s = 0.0
            await publish(bus, 2 * ENOUGH)
            assert not any(disk.in_loop)
            assert journal.writer.commits_in_loop == 0

    asyncio.run(main())


def test_the_writer_gets_a_turn_before_the_log_is_too_long(tmp_path: Path) -> None:
    """Moving the log into the database takes long, and is never done in the event loop."""

    async def main() -> None:
        async with opened(tmp_path, ALWAYS_S) as (bus, _, disk):
            await publish(bus, 2 * MAX_IN_A_ROW + 2)
            assert disk.in_loop == [*[True] * MAX_IN_A_ROW, False, *[True] * MAX_IN_A_ROW, False]

    asyncio.run(main())


def test_a_burst_is_the_writers(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ALWAYS_S) as (bus, _, disk):
            await publish(bus, 1)
            await bus.publish_many("a", [b"x"] * (MAX_HERE + 1))
            await bus.publish("a", bytes(100_000))
            await asyncio.gather(*(bus.publish(topic, bytes(50_000)) for topic in "ab"))
            await asyncio.gather(*(bus.publish(topic, bytes(10_000)) for topic in "ab"))
            assert disk.in_loop == [True, False, False, False, True]

    asyncio.run(main())


def test_what_comes_through_a_hub_is_the_writers(tmp_path: Path) -> None:
    """The loop of a hub serves other clients meanwhile."""

    async def main() -> None:
        async with opened(tmp_path, ALWAYS_S) as (bus, _, disk):
            hub = Hub(broker_of(bus))
            await hub.listen("pair:commit-in-loop")
            async with tl.connect("pair:commit-in-loop", world=bus.broker.world) as client:
                before = len(disk.in_loop)
                await client.publish("a", b"x")
                assert disk.in_loop[before:] == [False]
            await hub.aclose()

    asyncio.run(main())


def test_recorded_topics_do_not_wait_for_the_loop_to_commit(tmp_path: Path) -> None:
    async def main() -> None:
        settings = JournalSettings(durable=(), recorded=(">",), sync=Sync.SYSTEM, commit_in_loop_s=ALWAYS_S)
        with Journal(tmp_path, settings) as journal:
            async with tl.connect("memory:", journal=journal) as bus:
                await publish(bus, 10)
            assert journal.writer.commits_in_loop == 0

    asyncio.run(main())


def test_the_loop_does_not_wait_for_the_writer_and_order_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ALWAYS_S) as (bus, journal, disk), bus.subscribe("a", name="x") as stream:
            await publish(bus, 1)
            assert disk.in_loop == [True]
            go_on = hold(journal)
            waiting = []
            for number in range(1, 4):
                waiting.append(asyncio.create_task(bus.publish("a", b"%d" % number)))
                # A turn of the loop and more: each is alone in its turn.
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in waiting)
            go_on()
            await waiting[0]
            # The writer is idle again, but what it committed may not have been handed out yet.
            await bus.publish("a", b"4")
            await asyncio.gather(*waiting)
            assert [stream.try_recv().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
            assert texts(journal.reader.messages("a")) == ["0", "1", "2", "3", "4"]

    asyncio.run(main())


def test_the_loop_does_not_wait_for_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ALWAYS_S) as (bus, _, disk):
            await publish(bus, 1)
            with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                waiting = asyncio.create_task(bus.publish("a", b"1"))
                await asyncio.sleep(0.05)
                # The loop continues, and the failure is not reported.
                assert not waiting.done()
                other.execute("ROLLBACK")
                async with asyncio.timeout(15):
                    await waiting
            assert disk.in_loop == [True, False]

    asyncio.run(main())


@pytest.mark.parametrize("commit_in_loop_s", [0.0, ALWAYS_S], ids=["writer", "loop"])
def test_a_full_disk_is_reported_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, commit_in_loop_s: float
) -> None:
    async def main() -> None:
        async with opened(tmp_path, commit_in_loop_s) as (bus, journal, _), bus.subscribe("a", name="x") as stream:
            await publish(bus, 1)
            disk = BadDisk(journal)
            disk.full = True
            with pytest.raises(NotStored) as caught:
                await bus.publish("a", b"refused")
            assert caught.value.why == "the disk is full: free some space"
            disk.full = False
            await bus.publish("a", b"1")
            assert [(each.seq, each.payload) for each in (stream.try_recv(), stream.try_recv())] == [
                (1, b"0"),
                (3, b"1"),
            ]
            assert texts(journal.reader.messages("a")) == ["0", "1"]
            assert bus.stats().total_refused == 1

    asyncio.run(main())
    assert len([record for record in caplog.records if "nothing was written" in record.getMessage()]) == 1


class Interrupts:
    """A job that is interrupted as by Ctrl-C, the first time."""

    size = 0
    done_once = False

    def write(self, database: Database) -> None:
        if not self.done_once:
            self.done_once = True
            raise KeyboardInterrupt

    def done(self, error: Exception | None) -> None: ...


@pytest.mark.parametrize("after_commit", [False, True], ids=["before the commit", "after the commit"])
def test_an_interrupt_in_a_commit_loses_nothing_and_stores_nothing_twice(tmp_path: Path, after_commit: bool) -> None:
    settings = JournalSettings(sync=Sync.SYSTEM, commit_in_loop_s=ALWAYS_S, seal=False)
    calls = iter([False, True])

    def time_ns() -> int:
        if next(calls, False):
            raise KeyboardInterrupt
        return 0

    async def connected() -> tl.Bus:
        bus = await tl.connect("memory:", journal=journal).__aenter__()
        await bus.publish("a", b"0")
        assert journal.writer.commits_in_loop == 1
        return bus

    with Journal(tmp_path, settings) as journal, asyncio.Runner() as runner:
        ready(journal)
        bus = runner.run(connected())
        if after_commit:
            journal.writer._time_ns = time_ns
        else:
            journal.intake.more = [[], [Interrupts()]].pop
        publishing = runner.get_loop().create_task(bus.publish("a", b"1"))
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(publishing)
        runner.run(asyncio.wait_for(publishing, 10))
        journal.intake.more = journal.ledger.jobs
        runner.run(bus.aclose())
    with Reader(tmp_path) as reader:
        assert texts(reader.messages("a")) == ["0", "1"]
