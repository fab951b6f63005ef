"""A journal on virtual time, which may be closed and opened again; and a slow one, as with threads."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar

import trunkline as tl
from trunkline.errors import JournalDamaged, NotStored
from trunkline.journal import Journal, JournalBroker, JournalSettings, Reader, Sync
from trunkline.journal.writer import Job
from trunkline.testing import Simulation, world

T = TypeVar("T")

NS = 1_000_000_000
ALWAYS_S = 3600.0
"""As `commit_in_loop_s`: no commit takes so long, so that the event loop's thread commits whatever is lone."""
MAX_READS = 500


class Clock:
    """A world whose clock does not move until it is set."""

    def __init__(self, now_ns: int = 1_700_000_000 * NS) -> None:
        self.now_ns = now_ns
        self.world = tl.World(time_ns=lambda: self.now_ns)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)


def journal_in(directory: Path, clock: Clock | None = None, **settings: Any) -> Journal:
    """An open journal without threads. It need not survive a power failure."""
    chosen = JournalSettings(**{"sync": Sync.SYSTEM, **settings})
    return Journal(directory, chosen, world=(clock or Clock()).world, threaded=False).open()


def message(topic: str, payload: bytes = b"", **fields: Any) -> tl.Message:
    return tl.Message(topic=topic, payload=payload, **{"id": "an id", "timestamp_ns": 1, **fields})


def store(journal: Journal, batches: Iterable[Sequence[tl.Message]]) -> list[tl.Message]:
    """Write batches, a row each. Returns the numbered messages."""

    async def write() -> list[tl.Message]:
        return [each for batch in batches for each in await journal.append(batch)]

    return asyncio.run(write())


def fill(journal: Journal, rows: int, of: int = 1, *topics: str, payload: bytes = b"x") -> list[tl.Message]:
    """Rows of messages on these topics in turn, each with its own id."""
    names = topics or ("a",)
    now_ns = journal.world.time_ns()
    last = journal.intake.numbers.last
    return store(
        journal,
        [
            [
                message(names[row % len(names)], payload, id=f"{last + row * of + at + 1}", timestamp_ns=now_ns)
                for at in range(of)
            ]
            for row in range(rows)
        ],
    )


def seqs(messages: Iterable[tl.Message]) -> list[int]:
    return [each.seq for each in messages]


class Spinning(BaseException):
    """A caller asks the journal again and again, while nothing can change. Not an Exception: none may catch it."""


class QuickJournal(Journal):
    """Everything happens at once. A caller that never stops asking gets an error."""

    def __init__(self, directory: Path, settings: JournalSettings, simulation: Simulation) -> None:
        super().__init__(directory, settings, world=world(simulation), threaded=False)
        self._simulation = simulation
        self._asked = (0.0, 0)
        self.spun = False

    async def in_thread(self, function: Callable[[Reader], T]) -> T:
        now, count = self._asked
        self._asked = (now, count + 1) if now == self._simulation.now() else (self._simulation.now(), 0)
        if self._asked[1] > MAX_READS:
            self.spun = True
            raise Spinning
        return await super().in_thread(function)


class SlowJournal(Journal):
    """Commits and reads take some virtual time, drawn from the simulation: as with threads, but reproducible.

    What waits when the writer comes round is one transaction, as it is with the writer's thread.
    """

    def __init__(self, directory: Path, settings: JournalSettings, simulation: Simulation) -> None:
        super().__init__(directory, settings, world=world(simulation), threaded=False)
        self._random = simulation.random
        self._waiting: deque[Sequence[Job]] = deque()
        self._round: asyncio.TimerHandle | None = None
        self._hurry = False

    def open(self) -> Self:
        fresh = self._writer is None
        super().open()
        if fresh:
            self._hurry = False
            self._commit_here = self.writer.commit_here
            self.writer.put = self._put_later  # type: ignore[method-assign]  # the moment is all that is changed
            self.writer.commit_here = self._maybe_here  # type: ignore[method-assign]
        return self

    def _moment_s(self) -> float:
        return self._random.choice([0.0, 0.0001, self._random.uniform(0, 0.03)])

    def _put_later(self, jobs: Sequence[Job]) -> None:
        self._waiting.append(jobs)
        if self._hurry:
            self._come_round()
        elif self._round is None:
            self._round = asyncio.get_running_loop().call_later(self._moment_s(), self._come_round)

    def _maybe_here(self, jobs: Sequence[Job]) -> bool:
        """Like a thread: not while something waits, nor if the disk was slow recently."""
        return not self._waiting and self._random.random() < 0.5 and self._commit_here(jobs)

    def _come_round(self) -> None:
        self._round = None
        jobs = [job for jobs in self._waiting for job in jobs]
        self._waiting.clear()
        if jobs:
            self.writer._commit(jobs)

    async def in_thread(self, function: Callable[[Reader], T]) -> T:
        await asyncio.sleep(self._moment_s())
        found = function(self.reader)
        await asyncio.sleep(self._moment_s())
        return found

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Write at once: a caller that waits for the writer inside this block blocks the event loop."""
        self._hurry = True
        if self._round is not None:
            self._round.cancel()
        self._come_round()
        yield
        self._hurry = False

    async def aclose(self) -> None:
        with self.hurry():
            await super().aclose()


class Place:
    """The place of a journal over all its runs. `async with place.bus() as bus` is one run.

    At the end of each the books balance, and nothing is in flight.
    """

    def __init__(self, simulation: Simulation, directory: Path, *, slow: bool = False, **settings: Any) -> None:
        self.simulation = simulation
        self.directory = directory / f"seed {simulation.seed}"
        in_loop_s = ALWAYS_S if slow or simulation.seed % 2 else 0.0
        self.settings = JournalSettings(**{"sync": Sync.SYSTEM, "commit_in_loop_s": in_loop_s, **settings})
        self.slow = slow

    def journal(self) -> Journal:
        if self.slow:
            return SlowJournal(self.directory, self.settings, self.simulation)
        return QuickJournal(self.directory, self.settings, self.simulation)

    @asynccontextmanager
    async def bus(self, **settings: Any) -> AsyncIterator[tl.Bus]:
        journal = self.journal()
        broker = JournalBroker(journal, tl.Settings(**{"drain_s": 0.0, **settings}))
        try:
            async with tl.connect(broker, name="bus") as bus:
                yield bus
        finally:
            await broker.aclose()
            await journal.aclose()
        assert not getattr(journal, "spun", False), "a subscription asked the journal again and again"
        for name, account in bus.accounts().items():
            assert account.balanced, (name, account)
        assert bus.stats().account.in_flight == 0, bus.accounts()

    def crash(self) -> Place:
        """A copy in its own place: what a new process would find if this one died now."""
        found = Place(self.simulation, self.directory.parent, slow=self.slow)
        found.settings = self.settings
        found.directory = self.directory.with_name(f"{self.directory.name} after a crash at {self.simulation.now()}")
        shutil.copytree(self.directory, found.directory)
        return found

    def reader(self) -> Reader:
        return Reader(self.directory, on_damage=fail_on_damage)


def fail_on_damage(damage: JournalDamaged) -> None:
    raise damage


def journal_of(bus: tl.Bus) -> Journal:
    assert isinstance(bus.broker, JournalBroker)
    return bus.broker.journal


def tend(bus: tl.Bus, *, everything: bool = False) -> None:
    """The maintenance that a journal's own thread does: seal, join, remove."""
    journal = journal_of(bus)
    with journal.hurry() if isinstance(journal, SlowJournal) else nullcontext():
        if everything:
            journal.seal(everything=True)
        journal.tender.tend()


def broker_of(bus: tl.Bus) -> JournalBroker:
    assert isinstance(bus.broker, JournalBroker)
    return bus.broker


async def until(condition: Callable[[], object], timeout_s: float = 60.0, every_s: float = 0.001) -> None:
    """Let (virtual) time pass until the condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # time is virtual: waiting costs nothing
            await asyncio.sleep(every_s)


async def take(stream: tl.Stream, count: int, *, ack: bool = True, timeout_s: float = 60.0) -> list[tl.Message]:
    """The next messages, acknowledged at once."""
    found: list[tl.Message] = []
    async with asyncio.timeout(timeout_s):
        while len(found) < count:
            got = await stream.recv()
            assert got is not None, f"{stream.name} ended after {len(found)} of {count}"
            found.append(got)
            if ack:
                assert stream.ack(got)
    return found


async def nothing_more(stream: tl.Stream, for_s: float = 5.0) -> None:
    """Nothing arrives for a while."""
    try:
        async with asyncio.timeout(for_s):
            got = await stream.recv()
    except TimeoutError:
        return
    raise AssertionError(f"{stream.name} got {got}, which it ought not to")


def texts(messages: Iterable[tl.Message]) -> list[str]:
    return [bytes(each.payload).decode() for each in messages]


class BadDisk:
    """Makes commits fail as a full disk does, while `full`."""

    def __init__(self, journal: Journal) -> None:
        self.full = False
        self.failed = 0
        self._try = journal.writer._try
        journal.writer._try = self._maybe  # type: ignore[method-assign]  # a disk that is full now and then

    def _maybe(self, jobs: Sequence[Job]) -> Exception | None:
        if not self.full:
            return self._try(jobs)
        self.failed += 1
        return NotStored("the disk is full: free some space")
