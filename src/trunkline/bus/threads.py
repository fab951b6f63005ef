"""Publishing from other threads into a bus that runs in an event loop, with one wake-up for many messages."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Unpack

from trunkline.errors import BackpressureTimeout, BusClosed, Congested, UsageError
from trunkline.message import Fields
from trunkline.settings import Backpressure

MAX_BYTES: Final = 64 * 1024 * 1024
TOGETHER: Final = 64
"""The number of messages that the event loop takes from the queue at once, so that the lock is rarely contended."""

QueuedPublish = tuple[str, object, Fields, Future[str], int]
"""Topic, payload, fields, future, and the size of the payload in bytes for the limit MAX_BYTES."""


class PublishFuture(Future[str]):
    """The future of a publish from a thread. Most are never used, so its parts are created on first access.

    Creating the condition of a future costs more than the publish, and gives the garbage collector three more objects.
    """

    _begun = False
    _made = False
    _message_id: str | None = None

    def __init__(self, guard: threading.Lock) -> None:
        """`guard` is held briefly, and never while a future is inspected."""
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes: the parts of a future that was not used yet.
        with self._guard:
            if not self._made:
                made: Future[str] = Future()
                if self._begun:
                    made.set_running_or_notify_cancel()
                if self._message_id is not None:
                    made.set_result(self._message_id)
                # In one step: another thread sees all parts or none.
                self.__dict__.update(vars(made), _made=True)
        return object.__getattribute__(self, name)

    def set_running_or_notify_cancel(self) -> bool:
        with self._guard:
            if not self._made:
                self._begun = True
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: str) -> None:
        with self._guard:
            if not self._made:
                self._message_id = result
                return
        super().set_result(result)


class ThreadDoor:
    """Publishes from any thread. The messages of one thread stay in order.

    Its queue has room for `max_pending` messages, and for MAX_BYTES of payloads that are bytes.
    """

    def __init__(self, name: str, publish: Callable[..., Coroutine[Any, Any, str]], limits: Backpressure) -> None:
        """Called in the event loop of the bus."""
        self._name = name
        self._publish = publish
        self._limits = limits
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(
                "call from_thread() in the event loop, and give the object it returns to the thread"
            ) from None
        self._loop_thread = threading.get_ident()
        self._queue: deque[QueuedPublish] = deque()
        self._taken: deque[QueuedPublish] = deque()
        """Messages that left the queue and are not published yet.

        They still count. Only the event loop changes this.
        """
        self._bytes = 0
        self._taken_bytes = 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._guard = threading.Lock()
        self._is_woken = False
        self._task: asyncio.Task[None] | None = None

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Future[str]:
        """Publish soon. The future returns the id or raises the error; waiting for it is optional.

        If the queue is full, this call waits until there is room, and raises BackpressureTimeout after `timeout_s`; in
        the event loop's own thread it raises Congested at once. Raises BusClosed if the bus's event loop has ended.
        """
        future = PublishFuture(self._guard)
        size = len(payload) if isinstance(payload, bytes) else 0
        with self._lock:
            if not self._has_room():
                self._wait()
            self._bytes += size
            self._queue.append((topic, payload, fields, future, size))
            must_wake, self._is_woken = not self._is_woken, True
        # The first publish wakes the event loop; later ones share the wake-up.
        if must_wake:
            try:
                self._loop.call_soon_threadsafe(self._open)
            except RuntimeError as error:
                self._fail_queued()
                raise BusClosed(self._name) from error
        return future

    def _has_room(self) -> bool:
        return len(self._queue) + len(self._taken) < self._limits.max_pending and self._bytes < MAX_BYTES

    def _wait(self) -> None:
        name = f"the queue for threads of {self._name}"
        if threading.get_ident() == self._loop_thread:
            raise Congested(name, len(self._queue) + len(self._taken))
        if not self._room.wait_for(self._has_room, self._limits.timeout_s):
            raise BackpressureTimeout(name, self._limits.timeout_s)

    def _open(self) -> None:
        self._task = self._loop.create_task(self._drain(), name="publishing from threads")

    async def _drain(self) -> None:
        publish = self._publish
        while taken := self._take():
            while taken:
                topic, payload, fields, future, _ = taken.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(await (publish(topic, payload, **fields) if fields else publish(topic, payload)))
                except Exception as error:
                    future.set_exception(error)
                except asyncio.CancelledError:
                    future.set_exception(BusClosed(self._name))
                    raise

    def _take(self) -> deque[QueuedPublish]:
        """The next items, after the previous ones are published. If there are none, the next publish wakes the loop."""
        queue, taken = self._queue, self._taken
        with self._lock:
            self._bytes -= self._taken_bytes
            while queue and len(taken) < TOGETHER:
                taken.append(queue.popleft())
            self._taken_bytes = sum([item[4] for item in taken])
            self._is_woken = bool(taken)
            self._room.notify_all()
        return taken

    async def aclose(self, within_s: float) -> None:
        """Finish the queued messages, for at most this long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=within_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_queued()

    def _fail_queued(self) -> None:
        while taken := self._taken or self._take():
            future = taken.popleft()[3]
            if future.set_running_or_notify_cancel():
                future.set_exception(BusClosed(self._name))
