"""The writer: one thread, one connection. Whatever waits when it comes round is written in one transaction."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from trunkline.errors import NotStored
from trunkline.journal import database as files
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.settings import Sync

log = logging.getLogger("trunkline.journal")

T = TypeVar("T")

Database = sqlite3.Connection


class Job(Protocol):
    """A piece of a transaction."""

    def write(self, database: Database) -> None: ...

    def done(self, error: Exception | None) -> None:
        """Called by the writer after the commit, or when there is none."""


class FunctionJob(Generic[T]):
    """A function to run inside a transaction; `future` has its result after the commit."""

    def __init__(self, function: Callable[[Database], T]) -> None:
        self._function = function
        self._result: Any = None
        self.future: Future[T] = Future()

    def write(self, database: Database) -> None:
        self._result = self._function(database)

    def done(self, error: Exception | None) -> None:
        if not self.future.set_running_or_notify_cancel():
            # Whoever waited has gone.
            return
        if error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(error)


class Writer:
    def __init__(self, directory: Path, sync: Sync, after: Callable[[Sequence[Job], Exception | None], None]) -> None:
        self._directory = directory
        self._sync = sync
        self._after = after
        """Called with all jobs of a transaction, by the writer's own thread."""
        self._queue: SimpleQueue[Sequence[Job] | None] = SimpleQueue()
        self._database: Database | None = None
        self._thread: threading.Thread | None = None
        self.commits = 0

    def open(self, *, threaded: bool = True) -> None:
        self._database = files.open_for_writing(self._directory, self._sync)
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
            self._queue.put(jobs)

    def call(self, function: Callable[[Database], T]) -> Future[T]:
        job = FunctionJob(function)
        self.put([job])
        return job.future

    def close(self) -> None:
        """Write what waits, and stop."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
            while self._queue.qsize():
                # They came after the end. Whoever waits for them must be told.
                self._finish(self._queue.get() or (), JournalUnusable(str(self._directory), "it is closed"))
        if self._database is not None:
            try:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                log.warning("%s: the log stays, the next start reads it: %s", self._directory, error)
            self._database.close()
            self._database = None

    def _run(self) -> None:
        self._lengthen()
        queue = self._queue
        while (jobs := queue.get()) is not None:
            if queue.qsize():
                jobs = list(jobs)
                while queue.qsize():
                    more = queue.get()
                    if more is None:
                        queue.put(None)
                        break
                    jobs.extend(more)
            self._commit(jobs)

    def _lengthen(self) -> None:
        assert self._database is not None
        try:
            files.lengthen_log(self._database, self._directory)
        except (sqlite3.Error, OSError) as error:
            # It would only have been faster.
            log.info("%s: the log keeps its length: %s", self._directory, error)
            self._roll_back(self._database)

    def _commit(self, jobs: Sequence[Job]) -> None:
        error = self._try(jobs)
        if error is not None and len(jobs) > 1 and not isinstance(error, NotStored):
            # One of them is at fault, not the disk: the others must not suffer for it.
            for job in jobs:
                self._finish([job], self._try([job]))
            return
        self._finish(jobs, error)

    def _try(self, jobs: Sequence[Job]) -> Exception | None:
        database = self._database
        assert database is not None
        try:
            database.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job.write(database)
            database.execute("COMMIT")
        except Exception as error:
            self._roll_back(database)
            if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.IntegrityError | sqlite3.ProgrammingError
            ):
                log.error("%s: nothing was written: %s", self._directory, error)
                stored = NotStored(files.why(error, self._directory))
                stored.__cause__ = error
                return stored
            return error
        self.commits += 1
        return None

    def _roll_back(self, database: Database) -> None:
        if database.in_transaction:
            try:
                database.execute("ROLLBACK")
            except sqlite3.Error as error:
                log.error("%s: cannot even take back: %s", self._directory, error)

    def _finish(self, jobs: Sequence[Job], error: Exception | None) -> None:
        for job in jobs:
            try:
                job.done(error)
            except Exception:
                # Others wait for this thread.
                log.exception("%s: somebody could not be told of a commit", self._directory)
        self._after(jobs, error)
