"""Threads for handlers that are plain functions. Unlike asyncio's, they do not keep a process alive after Ctrl-C.

A function in a thread cannot be stopped. When a bus closes normally, its event loop waits for the function before it
ends. After Ctrl-C it does not wait: the message was not acknowledged, and its fate is recorded. An actor system waits
only as long as its settings allow.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from trunkline.errors import BusClosed

T = TypeVar("T")
P = ParamSpec("P")

MAX_THREADS = 32
"""The maximum number of threads of a bus. An actor system has its own limit."""

Work = tuple[Future[Any], Callable[[], Any]]


class HandlerThreads(Executor):
    """A pool of threads. They are started on demand, and end with `close`."""

    def __init__(self, name: str, max_threads: int = MAX_THREADS) -> None:
        self._name = name
        self._max_threads = max_threads
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._unfinished: set[Future[Any]] = set()
        self._closed = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        if self._closed:
            raise BusClosed(self._name)
        future: Future[T] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        self._queue.put((future, lambda: function(*args, **options)))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_threads:
            name = f"trunkline {self._name} handler {len(self._threads) + 1}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            _run(*work)
            # Not held while this thread waits for more.
            del work
            self._idle.release()

    def close(self, *, wait: bool) -> None:
        """End the threads.

        Busy ones end after their work; with `wait`, the running event loop does not end before them.
        """
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        if not self._unfinished:
            self._join()
        elif wait:
            asyncio.get_running_loop().run_in_executor(None, self._join)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except StopIteration as error:
        # A future does not accept it, and the caller would wait for ever. A coroutine that raises it does the same.
        failure = RuntimeError("a handler raised StopIteration")
        failure.__cause__ = error
        future.set_exception(failure)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
