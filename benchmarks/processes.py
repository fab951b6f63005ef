"""Worker processes. They are started once for a case, run one function after another, and are killed at its end.

The start of a process is therefore not measured, and rounds are short. The work is a function of a module. Its first
argument is the worker's end of the connection. A coroutine runs on uvloop.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

import uvloop

from benchmarks.servers import Server

SILENT_S = 120.0
"""A worker that sends nothing for this long is considered to hang."""
_STOP = b""
_PR_SET_PDEATHSIG = 1
_spawn = get_context("spawn")

P = ParamSpec("P")


class WorkerError(RuntimeError):
    """A worker failed (the text has its traceback), ended, or no longer responds."""


class Done(NamedTuple):
    """The result of the work, and its processor time since `ready`."""

    value: Any
    cpu_s: float


class Line:
    """The worker's end of the connection. It is the first argument of the work."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self.stop = threading.Event()
        """Set when the work should end."""
        self._pipe = pipe
        self._work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._began_s = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def ready(self) -> None:
        """Report that the setup is complete. The processor time is measured from here."""
        self._pipe.send(("ready", None))
        self._began_s = time.process_time()

    def _listen(self) -> None:
        try:
            while True:
                said = self._pipe.recv_bytes()
                if said == _STOP:
                    self.stop.set()
                else:
                    self.stop.clear()
                    self._work.put(said)
        except (EOFError, OSError):
            # The parent process has ended, or was killed: the work is no longer needed.
            os._exit(0)

    def serve(self) -> None:
        while True:
            work = self._work.get()
            gc.collect()
            self._began_s = time.process_time()
            try:
                function, arguments = pickle.loads(work)
                value = function(self, *arguments)
                if inspect.iscoroutine(value):
                    value = uvloop.run(value)
                self._pipe.send(("done", Done(value, time.process_time() - self._began_s)))
            except Exception:
                self._pipe.send(("failed", traceback.format_exc()))


def _main(pipe: Connection[Any, Any]) -> None:
    # Ctrl-C is handled by the measuring process, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # A frozen worker cannot notice that its parent was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Line(pipe).serve()


class Worker:
    """A worker process, as seen by the measuring process."""

    def __init__(self, number: int) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_main, args=(theirs,), name=f"worker {number}", daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def begin(self, function: Callable[Concatenate[Line, P], object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Start the function in the worker, without waiting for it."""
        self._pipe.send_bytes(pickle.dumps((partial(function, **kwargs) if kwargs else function, args)))

    def ready(self) -> None:
        """Return when the work is ready. Raises WorkerError."""
        if self.hear() is not None:
            raise WorkerError(f"{self._process.name} has ended its work without a word")

    def stop(self) -> None:
        """Request the end of the work. Work that does not check `stop` continues."""
        self._pipe.send_bytes(_STOP)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def result(self) -> Done:
        """Wait for the result of the work. Raises WorkerError."""
        (done,) = results([self])
        return done

    def hear(self) -> Done | None:
        """Wait for the next report: the result of the work, or None for `ready`. Raises WorkerError."""
        try:
            if not self._pipe.poll(SILENT_S):
                raise WorkerError(f"{self._process.name} has said nothing for {SILENT_S:g} s")
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join()
            raise WorkerError(f"{self._process.name} ended with {self._process.exitcode}") from error
        if kind == "failed":
            raise WorkerError(f"{self._process.name} failed:\n{value}")
        return value if kind == "done" else None

    def fileno(self) -> int:
        return self._pipe.fileno()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


def results(workers: Sequence[Worker]) -> list[Done]:
    """Wait for the results of all workers, in this order. Raises WorkerError as soon as one of them fails."""
    done: dict[Worker, Done] = {}
    while left := {worker.fileno(): worker for worker in workers if worker not in done}:
        heard = wait(left, SILENT_S)
        for number, worker in left.items():
            # If no worker has reported in time, `hear` of the first one raises the error.
            if (number in heard or not heard) and (said := worker.hear()) is not None:
                done[worker] = said
    return [done[worker] for worker in workers]


Crew = Server[Sequence[Worker]]


def crew(size: int) -> Crew:
    """`size` workers. The outermost `running` block starts them, and always kills them at its end."""
    return Server(partial(_start, size))


@contextmanager
def _start(size: int, folder: Path) -> Iterator[Sequence[Worker]]:
    with ExitStack() as running:
        workers: list[Worker] = []
        for number in range(size):
            workers.append(Worker(number + 1))
            running.callback(workers[-1].kill)
        yield workers
