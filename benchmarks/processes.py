"""Worker processes: started once for a case, given one piece of work after another, killed when the block ends.

So the start of a process is off the clock, and rounds are short. What runs there is a function of a module, called with
the worker's end of the line; a coroutine runs on uvloop.
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
"""Who says nothing for so long hangs."""
_STOP = b""
_PR_SET_PDEATHSIG = 1
_spawn = get_context("spawn")

P = ParamSpec("P")


class WorkerError(RuntimeError):
    """A worker failed, with its traceback; or it ended, or says nothing any more."""


class Done(NamedTuple):
    """What the work has returned, and the processor time it took from `ready` on."""

    value: Any
    cpu_s: float


class Line:
    """The worker's end. Work takes it as its first argument."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self.stop = threading.Event()
        """Set when the other end wants the work to end."""
        self._pipe = pipe
        self._work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._began_s = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def ready(self) -> None:
        """Everything is set up: the other end may go on, and the processor time counts from here."""
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
            # Whoever started it is gone, perhaps killed: whatever is being done here is for nobody.
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
    # A Ctrl-C is for the measurement, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # A worker that is frozen cannot see that whoever started it was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Line(pipe).serve()


class Worker:
    """The end of whoever measures."""

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
        """Let the function run there, and go on here."""
        self._pipe.send_bytes(pickle.dumps((partial(function, **kwargs) if kwargs else function, args)))

    def ready(self) -> None:
        """Return when the work has said that it is ready. Raises WorkerError."""
        if self.hear() is not None:
            raise WorkerError(f"{self._process.name} has ended its work without a word")

    def stop(self) -> None:
        """Ask the work to end; one that does not look at `stop` goes on."""
        self._pipe.send_bytes(_STOP)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def result(self) -> Done:
        """What the work has returned, when it has. Raises WorkerError."""
        (done,) = results([self])
        return done

    def hear(self) -> Done | None:
        """The next that it says: what the work has returned, or None if that is only ready. Raises WorkerError."""
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
    """What all of them have returned, in this order. Raises WorkerError as soon as one of them fails."""
    done: dict[Worker, Done] = {}
    while left := {worker.fileno(): worker for worker in workers if worker not in done}:
        heard = wait(left, SILENT_S)
        for number, worker in left.items():
            # If nobody says anything, the first one tells how long that has been.
            if (number in heard or not heard) and (said := worker.hear()) is not None:
                done[worker] = said
    return [done[worker] for worker in workers]


Crew = Server[Sequence[Worker]]


def crew(size: int) -> Crew:
    """So many workers, started by the outermost `running` block and killed at its end, whatever happens."""
    return Server(partial(_start, size))


@contextmanager
def _start(size: int, folder: Path) -> Iterator[Sequence[Worker]]:
    with ExitStack() as running:
        workers: list[Worker] = []
        for number in range(size):
            workers.append(Worker(number + 1))
            running.callback(workers[-1].kill)
        yield workers
