"""The door for other threads: publish into a bus that lives in an event loop, with one wake-up for many messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Unpack

from trunkline.message import Fields


class ThreadDoor:
    """Safe from any thread. The messages of one thread stay in order."""

    def __init__(self, publish: Callable[..., Coroutine[Any, Any, str]], loop: asyncio.AbstractEventLoop) -> None:
        self._publish = publish
        self._loop = loop
        self._queue: deque[tuple[str, object, Fields, Future[str]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Future[str]:
        """Publish soon; the future gives the id, or the error. Wait for it, or go on.

        Raises RuntimeError if the bus's event loop has ended.
        """
        future: Future[str] = Future()
        self._queue.append((topic, payload, fields, future))
        # Whoever finds the queue empty wakes the loop; the others ride along.
        if len(self._queue) == 1:
            self._loop.call_soon_threadsafe(self._open)
        return future

    def _open(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._drain(), name="publishing from threads")

    async def _drain(self) -> None:
        while self._queue:
            topic, payload, fields, future = self._queue[0]
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(await self._publish(topic, payload, **fields))
            except Exception as error:
                future.set_exception(error)
            except asyncio.CancelledError:
                future.cancel()
                raise
            finally:
                # Removed only now: until then newcomers know that someone is at work.
                self._queue.popleft()

    async def aclose(self, within_s: float) -> None:
        """Finish what was handed in, for at most so long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=within_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._queue:
            self._queue.popleft()[3].cancel()
