"""The door for other threads: publish into a bus that lives in an event loop, with one wake-up for many messages."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Unpack

from trunkline.errors import BackpressureTimeout, BusClosed, Congested
from trunkline.message import Fields
from trunkline.settings import Backpressure

MAX_BYTES: Final = 64 * 1024 * 1024


class ThreadDoor:
    """Safe from any thread. The messages of one thread stay in order.

    Its queue has room for `max_pending` messages, and for MAX_BYTES of payloads that are bytes.
    """

    def __init__(self, name: str, publish: Callable[..., Coroutine[Any, Any, str]], limits: Backpressure) -> None:
        """Called in the event loop of the bus."""
        self._name = name
        self._publish = publish
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._queue: deque[tuple[str, object, Fields, Future[str]]] = deque()
        self._bytes = 0
        self._lock = threading.Condition()
        self._awake = False
        self._task: asyncio.Task[None] | None = None

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Future[str]:
        """Publish soon; the future gives the id, or the error. Wait for it, or go on.

        If the queue is full, this call waits until there is room, and raises BackpressureTimeout after `timeout_s`; in
        the event loop's own thread it raises Congested at once. Raises BusClosed if the bus's event loop has ended.
        """
        future: Future[str] = Future()
        with self._lock:
            if not self._has_room():
                self._wait()
            self._bytes += _size(payload)
            self._queue.append((topic, payload, fields, future))
            asleep, self._awake = not self._awake, True
        # Whoever finds the loop asleep wakes it; the others ride along.
        if asleep:
            try:
                self._loop.call_soon_threadsafe(self._open)
            except RuntimeError as error:
                self._fail_queued()
                raise BusClosed(self._name) from error
        return future

    def _has_room(self) -> bool:
        return len(self._queue) < self._limits.max_pending and self._bytes < MAX_BYTES

    def _wait(self) -> None:
        name = f"the queue for threads of {self._name}"
        if threading.get_ident() == self._loop_thread:
            raise Congested(name, len(self._queue))
        if not self._lock.wait_for(self._has_room, self._limits.timeout_s):
            raise BackpressureTimeout(name, self._limits.timeout_s)

    def _open(self) -> None:
        self._task = self._loop.create_task(self._drain(), name="publishing from threads")

    async def _drain(self) -> None:
        while (item := self._next()) is not None:
            topic, payload, fields, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(await self._publish(topic, payload, **fields))
            except Exception as error:
                future.set_exception(error)
            except asyncio.CancelledError:
                future.set_exception(BusClosed(self._name))
                raise

    def _next(self) -> tuple[str, object, Fields, Future[str]] | None:
        with self._lock:
            if self._queue:
                item = self._queue.popleft()
                self._bytes -= _size(item[1])
                self._lock.notify()
                return item
            self._awake = False
            return None

    async def aclose(self, within_s: float) -> None:
        """Finish what was handed in, for at most so long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=within_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_queued()

    def _fail_queued(self) -> None:
        while (item := self._next()) is not None:
            if item[3].set_running_or_notify_cancel():
                item[3].set_exception(BusClosed(self._name))


def _size(payload: object) -> int:
    return len(payload) if isinstance(payload, bytes) else 0
