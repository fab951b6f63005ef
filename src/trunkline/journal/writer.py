"""The writer: one thread, one connection. Everything that waits is written in one transaction.

The event loop's thread may use the connection for a single message, if it is free and commits are fast.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from trunkline.clock import World
from trunkline.errors import NotStored
from trunkline.journal import database as files
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.settings import JournalSettings

log = logging.getLogger("trunkline.journal")

T = TypeVar("T")

Database = sqlite3.Connection

UNKNOWN_NS: Final = 1_000_000_000
MAX_HERE: Final = 32
"""The maximum number of entries that the caller's thread commits itself. Larger bursts go to the writer's thread."""
MAX_IN_A_ROW: Final = 128
"""After this many commits in the caller's thread, the writer's thread does one, and empties the log if that is due."""


class Job(Protocol):
    """A part of a transaction."""

    size: int
    """The number of its messages, fates and other entries."""

    def write(self, database: Database) -> None: ...

    def done(self, error: Exception | None) -> None:
        """Called by the writer after the commit, or after a failed one."""


class FunctionJob(Generic[T]):
    """A function to run inside a transaction; `future` has its result after the commit."""

    size = 1

    def __init__(self, function: Callable[[Database], T]) -> None:
        self._function = function
        self._result: Any = None
        self.future: Future[T] = Future()

    def write(self, database: Database) -> None:
        self._result = self._function(database)

    def done(self, error: Exception | None) -> None:
        if not self.future.set_running_or_notify_cancel():
            # The waiting task was cancelled.
            return
        if error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(error)


class CommitTime:
    """The duration of a commit: a moving average that rises at once, and falls by a quarter of the difference."""

    def __init__(self) -> None:
        self.average_ns = UNKNOWN_NS

    def add(self, took_ns: int) -> None:
        self.average_ns = max(took_ns, self.average_ns - (self.average_ns - took_ns) // 4)

    def failed(self) -> None:
        self.average_ns = UNKNOWN_NS


class Writer:
    def __init__(
        self,
        directory: Path,
        settings: JournalSettings,
        world: World,
        after: Callable[[Sequence[Job], Exception | None], None],
    ) -> None:
        self._directory = directory
        self._sync = settings.sync
        self._max_here_ns = round(settings.commit_in_loop_s * 1e9)
        self._world = world
        self._time_ns = world.time_ns
        self._after = after
        """Called with all jobs of a transaction by the thread that wrote them, except after `commit_here`."""
        self._waiting: deque[Sequence[Job]] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        """True: jobs may be waiting. False: stop."""
        self._turn = threading.Lock()
        """Held by the thread that uses the connection. It must first write the waiting jobs."""
        self._database: Database | None = None
        self._thread: threading.Thread | None = None
        self._in_a_row = 0
        """Commits in the caller's thread since the last one in the writer's thread."""
        self.commit_time = CommitTime()
        self.commits = 0
        self.commits_in_loop = 0

    def open(self, *, threaded: bool = True) -> None:
        self._database = files.open_for_writing(self._directory, self._sync, self._world)
        if threaded:
            self._thread = threading.Thread(target=self._run, name=f"journal {self._directory.name}", daemon=True)
            self._thread.start()

    def put(self, jobs: Sequence[Job]) -> None:
        """Write these, in this order, with the next transaction. Without a thread, now."""
        if self._database is None:
            raise JournalUnusable(str(self._directory), "it is closed")
        if self._thread is None:
            self._commit(jobs)
        else:
            self._waiting.append(jobs)
            self._wake.put(True)

    def commit_here(self, jobs: Sequence[Job]) -> bool:
        """Commit these in the calling thread. False if nothing was done; then `put` them.

        Never waits for another thread or process, nor for a disk that was slow recently. After an error, the writer's
        thread tries again and reports the cause.
        """
        if self.commit_time.average_ns >= self._max_here_ns or self._in_a_row >= MAX_IN_A_ROW:
            return False
        if sum([job.size for job in jobs]) > MAX_HERE or not self._turn.acquire(blocking=False):
            return False
        try:
            database = self._database
            if self._waiting or database is None:
                return False
            self._in_a_row += 1
            if self._in_a_row == 1:
                files.set_patience(database, patient=False)
            changes = database.total_changes
            try:
                if self._try(jobs) is not None:
                    return False
            except BaseException:
                # KeyboardInterrupt is raised when a call into SQLite returns, which may be the commit.
                if database.in_transaction or database.total_changes == changes:
                    self._roll_back(database)
                    self.put(jobs)
                else:
                    self._tell(jobs, None)
                    self._after(jobs, None)
                raise
        finally:
            self._turn.release()
        self.commits_in_loop += 1
        self._tell(jobs, None)
        return True

    def call(self, function: Callable[[Database], T]) -> Future[T]:
        job = FunctionJob(function)
        self.put([job])
        return job.future

    def close(self) -> None:
        """Write what waits, and stop."""
        if self._thread is not None:
            self._wake.put(False)
            self._thread.join()
            self._thread = None
            while self._waiting:
                # They arrived after the end. Their futures get an error.
                jobs, error = self._waiting.popleft(), JournalUnusable(str(self._directory), "it is closed")
                self._tell(jobs, error)
                self._after(jobs, error)
        with self._turn:
            if self._database is not None:
                try:
                    self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                except sqlite3.Error as error:
                    log.warning(
                        "%s: the write-ahead log could not be emptied; it is read at the next start: %s",
                        self._directory,
                        error,
                    )
                self._database.close()
                self._database = None

    def _run(self) -> None:
        with self._turn:
            self._lengthen()
        while self._wake.get():
            with self._turn:
                jobs: list[Job] = []
                while self._waiting:
                    jobs.extend(self._waiting.popleft())
                outcomes = self._write(jobs) if jobs else []
            # Only now: a callback may start the next commit.
            for done, error in outcomes:
                self._after(done, error)

    def _lengthen(self) -> None:
        assert self._database is not None
        try:
            files.lengthen_log(self._database, self._directory)
        except (sqlite3.Error, OSError) as error:
            # Not an error: commits are only slower.
            log.info("%s: the write-ahead log could not be shortened: %s", self._directory, error)
            self._roll_back(self._database)

    def _commit(self, jobs: Sequence[Job]) -> None:
        for done, error in self._write(jobs):
            self._after(done, error)

    def _write(self, jobs: Sequence[Job]) -> list[tuple[Sequence[Job], Exception | None]]:
        """One transaction, or one for each job if one of them fails. Returns the result of each."""
        if self._in_a_row:
            assert self._database is not None
            files.set_patience(self._database, patient=True)
            self._in_a_row = 0
        error = self._try(jobs)
        if error is not None and len(jobs) > 1 and not isinstance(error, NotStored):
            # One of the jobs failed, not the disk: the others are written separately.
            outcomes: list[tuple[Sequence[Job], Exception | None]] = [([job], self._try([job])) for job in jobs]
        else:
            outcomes = [(jobs, error)]
        for done, error in outcomes:
            self._tell(done, error)
        return outcomes

    def _try(self, jobs: Sequence[Job]) -> Exception | None:
        database = self._database
        assert database is not None
        began_ns = self._time_ns()
        try:
            database.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job.write(database)
            database.execute("COMMIT")
        except Exception as error:
            self._roll_back(database)
            self.commit_time.failed()
            if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.IntegrityError | sqlite3.ProgrammingError
            ):
                stored = NotStored(files.why(error, self._directory))
                stored.__cause__ = error
                return stored
            return error
        self.commit_time.add(self._time_ns() - began_ns)
        self.commits += 1
        return None

    def _roll_back(self, database: Database) -> None:
        if database.in_transaction:
            try:
                database.execute("ROLLBACK")
            except sqlite3.Error as error:
                log.error("%s: the transaction could not be rolled back: %s", self._directory, error)

    def _tell(self, jobs: Sequence[Job], error: Exception | None) -> None:
        if isinstance(error, NotStored):
            log.error("%s: nothing was written: %s", self._directory, error.__cause__ or error)
        for job in jobs:
            try:
                job.done(error)
            except Exception:
                # The thread must go on for other jobs.
                log.exception("%s: a callback after a commit failed", self._directory)
