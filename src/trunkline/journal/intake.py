"""The intake: numbers the messages of one event loop iteration, passes them to the writer, and delivers them.

A single message waits only for the end of the iteration. A burst becomes one row for each topic, and one commit.
While the disk is fast, a single message is committed in the event loop's own thread, without the writer's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import astuple

from trunkline.clock import Sequence as Numbers
from trunkline.clock import World
from trunkline.delivery.batch import Batch
from trunkline.delivery.pending import Failures, HandedBatch, Owner, RunOwner, Waiter
from trunkline.delivery.plain_run import PlainRun
from trunkline.errors import NotStored
from trunkline.journal.body import make_batch, make_run_batch
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.writer import Database, Job, Writer
from trunkline.message import Message
from trunkline.plural import counted
from trunkline.unchecked import take_numbers

log = logging.getLogger("trunkline.journal")

MAX_ROW_MESSAGES = 10_000
MAX_ROW_BYTES = 8 * 1024 * 1024
MAX_LONE_BYTES = 64 * 1024
MAX_EARLY_NS = 1_500_000
"""About the time to publish a thousand messages.

If a commit takes longer, it is better to collect more messages first.
"""
INSERT = "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class PendingWrite(HandedBatch):
    """The messages of one iteration on one topic, before they are committed."""

    __slots__ = ("at_ns", "given", "run_owner", "waits")

    def __init__(self, topic: str, waits: bool) -> None:
        super().__init__(topic)
        self.waits = waits
        """Whether they are delivered only after the commit."""
        self.at_ns = 0
        self.given = False
        self.run_owner: RunOwner | None = None
        """The owner of `run`. No other messages are here then."""

    def take_run(self, run: PlainRun, owner: RunOwner) -> None:
        self.run, self.run_owner = run, owner
        self.waiters.append(Waiter(None, owner, 0))


Give = Callable[[PendingWrite], None]
"""Delivers messages, and calls `Intake.through` afterwards."""


class Rows:
    """Pending messages as rows of the journal."""

    def __init__(
        self, pendings: list[PendingWrite], committed: Callable[[list[PendingWrite], Exception | None], None]
    ) -> None:
        self.pendings = pendings
        self.committed = committed
        self._runs = [pending.run for pending in pendings]
        """Kept here, because the event loop may open them while they are written."""
        self.size = sum([pending.count for pending in pendings])

    def write(self, database: Database) -> None:
        rows = []
        for pending, run in zip(self.pendings, self._runs, strict=True):
            if run is not None and pending.size <= MAX_ROW_BYTES:
                rows.append(astuple(make_run_batch(run, pending.at_ns)))
                continue
            messages = pending.messages if run is None else run.messages
            small = len(messages) <= MAX_ROW_MESSAGES and pending.size <= MAX_ROW_BYTES
            for part in [messages] if small else _parts(messages):
                rows.append(astuple(make_batch(part, pending.at_ns, plain=pending.plain, alike=pending.alike)))
        database.executemany(INSERT, rows)

    def done(self, error: Exception | None) -> None:
        """Continue in the event loop."""


def _parts(messages: list[Message]) -> list[list[Message]]:
    parts: list[list[Message]] = [[]]
    size = 0
    for message in messages:
        if parts[-1] and (size >= MAX_ROW_BYTES or len(parts[-1]) >= MAX_ROW_MESSAGES):
            parts.append([])
            size = 0
        parts[-1].append(message)
        size += len(message.payload)
    return parts


class Intake:
    """The intake of a journal. Used in the thread of one event loop."""

    def __init__(self, writer: Writer, world: World, numbers: Numbers, max_backlog_bytes: int, at_ns: int) -> None:
        self._writer = writer
        self._world = world
        self.numbers = numbers
        self._max_backlog = max_backlog_bytes
        self.pending: dict[str, PendingWrite] = {}
        """Messages published since the last flush, by topic."""
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop
        """The event loop of the last flush. Not set before the first."""
        self._under_way: set[PendingWrite] = set()
        """Messages that were passed to the writer and are not committed yet."""
        self.again: Callable[[], None] = lambda: None
        """Called in the event loop when a commit failed, so that fates and cursors are written again."""
        self._at_ns = at_ns
        self.give: Give = self.through
        self.stored: Callable[[PendingWrite], None] = lambda pending: None
        """Called with committed messages, in order."""
        self.more: Callable[[], Sequence[Job]] = lambda: ()
        """Called at each flush for fates and cursors, which are written in the same transaction."""
        self.backlog = 0
        """Bytes passed to the writer and not yet committed."""
        self.committed = numbers.last
        """Everything stored up to here has been offered to durable subscriptions."""
        self.lost = 0
        """Recorded messages that could not be written: they were delivered, but are not in the journal."""

    def put(self, topic: str, message: Message, waits: bool) -> asyncio.Future[Failures]:
        """Take one plain message, to which no other code refers."""
        pending = self._opened(topic, waits)
        future: asyncio.Future[Failures] = self._loop.create_future()
        pending.add(message, future)
        return future

    def post(self, topic: str, message: Message, waits: bool, owner: Owner) -> None:
        """As `put`, but notifies the owner instead of a future."""
        pending = self._opened(topic, waits)
        pending.post(message, owner)

    def begin_run(self, run: PlainRun, waits: bool, owner: RunOwner) -> None:
        """Take a run, to which its owner appends until it is closed. Nothing else waits on its topic."""
        self._begin(run.topic, waits).take_run(run, owner)

    def put_batch(self, batch: Batch, messages: Sequence[Message], waits: bool) -> None:
        """As `put_many`, for an open batch, and notifies the batch instead of a future."""
        pending = self._opened(batch.topic, waits)
        pending.own(messages, batch)

    def storing(self, topic: str, first_id: str) -> Batch | None:
        """A batch that is being written, by the id of its first message."""
        for pending in (*self.pending.values(), *self._under_way):
            for start, batch in pending.batches if pending.topic == topic else ():
                if pending.messages[start].id == first_id:
                    return batch
        return None

    def put_many(
        self, topic: str, messages: Sequence[Message], waits: bool, *, alike: bool
    ) -> asyncio.Future[Failures]:
        """Take messages of one topic, to which no other code refers.

        With `alike`, all are plain, with one sender and format.
        """
        pending = self._opened(topic, waits)
        future: asyncio.Future[Failures] = self._loop.create_future()
        pending.extend(messages, future, alike=alike)
        return future

    def _begin(self, topic: str, waits: bool) -> PendingWrite:
        self.schedule()
        pending = self.pending[topic] = PendingWrite(topic, waits)
        return pending

    def _opened(self, topic: str, waits: bool) -> PendingWrite:
        """The pending messages of the topic, without an open run: others follow."""
        pending = self.pending.get(topic)
        if pending is None:
            return self._begin(topic, waits)
        pending.open()
        return pending

    def schedule(self) -> None:
        """Flush at the end of this iteration."""
        if not self._scheduled:
            self._scheduled = True
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self.flush(here=True)

    def flush(self, *, here: bool = False) -> None:
        """Pass waiting messages to the writer. With `here`, a single message may be committed in the event loop."""
        self._scheduled = False
        pendings = list(self.pending.values())
        self.pending.clear()
        jobs: list[Job] = []
        if pendings:
            self._at_ns = at_ns = max(self._at_ns, self._world.time_ns())
            numbers = self.numbers
            for pending in pendings:
                pending.at_ns = at_ns
                run = pending.run
                if run is not None:
                    run.close()
                pending.number(numbers.last + 1)
                numbers.last += pending.count
                payloads = run.payloads if run is not None else [message.payload for message in pending.messages]
                pending.size = sum(map(len, payloads))
                self.backlog += pending.size
            jobs.append(Rows(pendings, self._committed))
        jobs.extend(self.more())
        if here and self._is_lone(pendings) and self._writer.commit_here(jobs):
            self._committed(pendings, None)
            return
        self._under_way.update(pendings)
        if jobs:
            try:
                self._writer.put(jobs)
            except JournalUnusable as error:
                # It was closed in the meantime: waiting publishers get an error.
                self._committed(pendings, error)
                return
        # After the writer has it, so that the message is found if its delivery reads the journal.
        for pending in pendings:
            if not pending.waits and self.backlog <= self._max_backlog:
                self._give(pending)

    def hand_over(self) -> None:
        """Flush in the middle of an iteration, so that the writer works while the event loop continues.

        Does nothing while commits are slow, because two commits would take longer than the time saved. Also does
        nothing if messages are delivered before they are committed: these wait for the end of the iteration.
        """
        fast = self._writer.commit_time.average_ns < MAX_EARLY_NS
        if fast and all(pending.waits for pending in self.pending.values()):
            self.flush()

    def _is_lone(self, pendings: list[PendingWrite]) -> bool:
        """Whether nothing else is being written, and all of these are small and awaited in this process."""
        return (
            bool(pendings)
            and not self._under_way
            and sum([pending.size for pending in pendings]) <= MAX_LONE_BYTES
            and all(pending.waits and not pending.batches for pending in pendings)
        )

    def after(self, jobs: Sequence[Job], error: Exception | None) -> None:
        """Called by the writer's thread."""
        rows = [job for job in jobs if isinstance(job, Rows)]
        if rows or error is not None:
            try:
                self._loop.call_soon_threadsafe(self._after, rows, error)
            except (RuntimeError, AttributeError):
                # There is no event loop, or it has ended, so nothing waits for the result.
                log.debug("a commit without an event loop to report to")

    def _after(self, rows: list[Rows], error: Exception | None) -> None:
        for job in rows:
            job.committed(job.pendings, error)
        if error is not None:
            self.again()

    def _committed(self, pendings: list[PendingWrite], error: Exception | None) -> None:
        self._under_way.difference_update(pendings)
        for pending in pendings:
            self.backlog -= pending.size
            if error is not None:
                self._fail(pending, error)
                continue
            self.stored(pending)
            self.committed = pending.last
            if not pending.given:
                self._give(pending)

    def _give(self, pending: PendingWrite) -> None:
        pending.given = True
        self.give(pending)

    def through(self, pending: PendingWrite) -> None:
        """Complete the publishes of messages that all subscribers have received."""
        if pending.run is not None and pending.run_owner is not None:
            pending.run_owner.settled_run(pending.run)
        elif len(pending.waiters) == 1 and not pending.failures:
            pending.waiters[0].settled(pending.messages, [])
        else:
            pending.settle(pending.failures)

    def _fail(self, pending: PendingWrite, error: Exception) -> None:
        pending.open()
        if pending.given:
            self.lost += len(pending.messages)
            lost = counted(len(pending.messages), "message")
            log.error("%s on %s published, but not recorded: %s", lost, pending.topic, error)
            return
        take_numbers(pending.messages)
        why = error.why if isinstance(error, NotStored) else f"{type(error).__name__}: {error}"
        pending.fail(lambda: NotStored(why))
