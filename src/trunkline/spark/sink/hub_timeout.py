"""Ends a task if its hub is unavailable for too long. Durable messages alone would wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from trunkline.brokers.hub.connection import Connection
from trunkline.errors import HubUnavailable
from trunkline.wire.control import Welcome


class HubTimeout:
    """An observer of the connection, notified when the connection is lost and restored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def disconnected(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._connection.settings.connect_s, self._give_up)

    def connected(self, welcome: Welcome) -> None:
        self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        if not self._gone.done():
            self._gone.set_exception(HubUnavailable(self._connection.url, self._connection.last_failure or "it ended"))

    async def over(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work. Cancels it and raises HubUnavailable if the hub was unavailable for too long."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        # If both have ended, the result of the work counts.
        await (self._gone if task.cancelled() else task)


@asynccontextmanager
async def hub_timeout(connection: Connection) -> AsyncIterator[HubTimeout]:
    """Raises HubUnavailable if there is no hub at the start."""
    await connection.ready()
    watch = HubTimeout(connection)
    connection.users.append(watch)
    try:
        yield watch
    finally:
        connection.users.remove(watch)
        watch.stop()
