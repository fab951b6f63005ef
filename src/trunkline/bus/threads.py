"""The door for other threads: publish into a bus that lives in an event loop, with one wake-up for many messages."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Unpack

from trunkline.errors import BusClosed
from trunkline.message import Fields


class ThreadDoor:
    """Safe from any thread. The messages of one thread stay in order."""

    def __init__(
        self, name: str, publish: Callable[..., Coroutine[Any, Any, str]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._name = name
        self._publish = publish
        self._loop = loop
        self._queue: deque[tuple[str, object, Fields, Future[str]]] = deque()
        self._lock = threading.Lock()
        self._awake = False
        self._task: asyncio.Task[None] | None = None

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Future[str]:
        """Publish soon; the future gives the id, or the error. Wait for it, or go on.

        Raises BusClosed if the bus's event loop has ended.
        """
        future: Future[str] = Future()
        with self._lock:
            self._queue.append((topic, payload, fields, future))
            asleep, self._awake = not self._awake, True
        # Whoever finds the loop asleep wakes it; the others ride along.
        if asleep:
            try:
                self._loop.call_soon_threadsafe(self._open)
            except RuntimeError as error:
                self._awake = False
                raise BusClosed(self._name) from error
        return future

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
                return self._queue.popleft()
            self._awake = False
            return None

    async def aclose(self, within_s: float) -> None:
        """Finish what was handed in, for at most so long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=within_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while (item := self._next()) is not None:
            if item[3].set_running_or_notify_cancel():
                item[3].set_exception(BusClosed(self._name))
