"""kill -9 at any moment: acknowledged messages are stored once, and settled messages stay settled."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.books import DEAD, DELIVERED, Books, fates
from tests.journal.processes import Child
from trunkline.bus.subscription import Subscription
from trunkline.delivery.stream import Stream
from trunkline.journal import Journal, JournalSettings, Reader
from trunkline.topic import matches


def kill_again_and_again(books: Books, start: Callable[[int], Child], lives: int, longest_s: float) -> None:
    """Of five, one dies while it opens the journal, one while it closes it, the others while they work."""
    chance = random.Random(lives)
    with ExitStack() as ends:
        following = ends.enter_context(start(0))
        for life in range(lives):
            child = following
            # The next one imports what it needs while this one works.
            following = ends.enter_context(start(life + 1))
            child.go()
            match life % 5:
                case 0:
                    child.kill_after(chance.uniform(0.0, 0.1))
                case 1:
                    child.heard("open")
                    child.close_and_kill_after(chance.uniform(0.0, 0.1))
                case _:
                    child.heard("open")
                    child.kill_after(chance.uniform(0.0, longest_s))
            books.hear(child)
            if life:
                books.check_new()


def live_and_die(tmp_path: Path, lives: int, longest_s: float, program: str = "live") -> tuple[Books, list[Child]]:
    directory = tmp_path / "journal"
    books = Books(directory)
    children: list[Child] = []

    def start(life: int) -> Child:
        children.append(Child(tmp_path, program, directory, life, ("disk", "system")[life % 2]))
        return children[-1]

    kill_again_and_again(books, start, lives, longest_s)
    found = books.check_all()
    by_fate = books.check_fates(found, "worker", "work.>")
    assert all(by_fate[seq] == fate for seq, fate in books.settled.items())
    books.check_fates(found, "watcher", "other.>")

    work = {each.seq for each in found if matches("work.>", each.topic)}
    with Child(tmp_path, "drain", directory, max(work)) as child:
        child.finish()
        books.hear(child)
    assert books.check_all() == found
    assert books.check_fates(found, "worker", "work.>").keys() == work
    return books, children


def test_what_was_acknowledged_survives_kills_at_any_moment(tmp_path: Path) -> None:
    books, _ = live_and_die(tmp_path, lives=20, longest_s=0.5)
    assert {DELIVERED, DEAD} == set(books.settled.values())


def test_what_the_event_loop_committed_survives_kills_at_any_moment(tmp_path: Path) -> None:
    books, children = live_and_die(tmp_path, lives=20, longest_s=0.5, program="live_alone")
    # On a busy machine they are few, and the subscriber rejects few of those.
    assert DELIVERED in books.settled.values()
    committed_there = sum(len(child.said("here")) for child in children)
    assert committed_there > len(books.published) / 10


@pytest.mark.long
def test_what_was_acknowledged_survives_200_kills(tmp_path: Path) -> None:
    books, _ = live_and_die(tmp_path, lives=200, longest_s=0.2)
    assert {DELIVERED, DEAD} == set(books.settled.values())


def test_kills_while_it_seals_and_joins(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    books = Books(directory)
    kill_again_and_again(books, lambda life: Child(tmp_path, "seal", directory, life), 10, 0.5)
    found = books.check_all()
    books.check_fates(found, "watcher", ">")


@pytest.mark.parametrize(
    ("call", "nth"),
    # A round seals a file of messages and one of fates; the eighth joins both kinds, and then clears the old ones.
    # To seal a file: sync it, rename it, sync its three folders.
    [("fsync", 1), ("rename", 1), ("fsync", 2), ("rename", 17), ("fsync", 66), ("rename", 18), ("unlink", 20)],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_each_step_of_sealing_and_joining(tmp_path: Path, call: str, nth: int, when: str) -> None:
    directory = tmp_path / "journal"
    books = Books(directory)
    with Child(tmp_path, "die", directory, call, nth, when) as child:
        assert child.end() == -signal.SIGKILL, child.complaints()
        books.hear(child)
    found = books.check_all()
    books.check_fates(found, "watcher", ">")
    # The next start removes unused files, and continues where the other one stopped.
    with Journal(directory, JournalSettings(seal=False, seal_rows=400, replaced_s=0.0)) as journal:
        journal.seal(everything=True)
        journal.tender.join()
        journal.tender.forget_replaced()
        counted = {file.path for kind in ("messages", "fates") for file in journal.reader.files(kind)}
        there = {path.relative_to(directory).as_posix() for path in directory.glob("*/date=*/*")}
        assert there == counted
    assert books.check_all() == found
    books.check_fates(found, "watcher", ">")


# Without a kill: where it leads to a loss, every time


def worker(bus: tl.Bus) -> Subscription:
    retry = tl.Retry(attempts=3, delay_s=0.001)
    return bus.subscribe("work", name="worker", durable=True, start="beginning", retry=retry)


async def take(stream: Stream) -> tl.Message:
    async with asyncio.timeout(10):
        message = await stream.recv()
    assert message is not None
    return message


def test_a_retry_does_not_carry_the_subscription_past_what_was_never_handled(tmp_path: Path) -> None:
    """Four are taken, the fifth fails. After a restart the fifth is handled at once. The four must still come."""

    async def fail() -> None:
        async with tl.connect("memory:", journal=tmp_path) as bus, worker(bus) as stream:
            await bus.publish_many("work", [b"%d" % n for n in range(10)])
            for _ in range(4):
                await take(stream)
            stream.nack(await take(stream))

    async def handle_one() -> int:
        async with tl.connect("memory:", journal=tmp_path) as bus, worker(bus) as stream:
            message = await take(stream)
            stream.ack(message)
            await bus.flush()
            return message.seq

    async def handle(count: int) -> list[int]:
        async with tl.connect("memory:", journal=tmp_path) as bus, worker(bus) as stream:
            taken = []
            for _ in range(count):
                message = await take(stream)
                stream.ack(message)
                taken.append(message.seq)
            return taken

    asyncio.run(fail())
    first = asyncio.run(handle_one())
    assert sorted([first, *asyncio.run(handle(9))]) == list(range(1, 11))


def test_closing_tells_everybody_whose_message_was_under_way(tmp_path: Path) -> None:
    """A pipeline without a waiting publisher must not delay the confirmation of another publisher."""

    async def main() -> None:
        with Journal(tmp_path) as journal:
            async with tl.connect("memory:", journal=journal) as bus:
                for topic in ("work", "other"):
                    await bus.publish(topic, b"first")
                slow = threading.Event()
                journal.writer.call(lambda database: slow.wait(10))
                pipe = bus.pipeline()
                await pipe.publish("work", b"second")
                waiting = asyncio.create_task(bus.publish("other", b"second"))
                # The disk is done with them when the bus has closed its doors, and waits for the disk.
                asyncio.get_running_loop().call_later(0.2, slow.set)
            async with asyncio.timeout(5):
                await waiting
            assert pipe.in_flight == 0

    asyncio.run(main())


def test_who_gives_up_waiting_does_not_stop_the_writer(tmp_path: Path) -> None:
    """The disk is slow, and a publisher gives up: the next publish is written in any case."""

    async def main() -> None:
        with Journal(tmp_path) as journal:
            bus = await tl.connect("memory:", journal=journal).__aenter__()
            slow = threading.Event()
            journal.writer.call(lambda database: slow.wait(10))
            waiting = [asyncio.create_task(bus.flush()), asyncio.create_task(journal.forget("nobody"))]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            slow.set()
            async with asyncio.timeout(5):
                await bus.publish("work", b"next")
            # Only now: without its writer, a bus would close for ever.
            await bus.aclose()

    asyncio.run(main())


def test_what_was_delivered_is_written_once(tmp_path: Path) -> None:
    """For every order of acknowledgements: ranges of delivered messages do not overlap, nor include dead letters."""

    async def main() -> None:
        async with tl.connect("memory:", journal=tmp_path) as bus, worker(bus) as stream:
            await bus.publish_many("work", [b"%d" % n for n in range(9)])
            messages = [await take(stream) for _ in range(9)]
            for settle in ([3, 4], [0, 1, 2, 5, 6, 8]):
                for n in settle:
                    stream.ack(messages[n])
                if 8 not in settle:
                    stream.reject(messages[7], "never")
                await bus.flush()

    asyncio.run(main())
    with Reader(tmp_path) as reader:
        ranges = [(row.first, row.last, row.count) for row in fates(reader) if row.fate == DELIVERED]
    covered = [seq for first, last, _ in ranges for seq in range(first, last + 1)]
    assert sorted(covered) == [1, 2, 3, 4, 5, 6, 7, 9]
    assert sum(count for _, _, count in ranges) == len(covered)
