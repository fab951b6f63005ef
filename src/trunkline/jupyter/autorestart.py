"""Restarts a kernel whose process has ended unexpectedly, a limited number of times."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from trunkline.errors import TrunklineError
from trunkline.jupyter.kernel import Kernel

log = logging.getLogger("trunkline.jupyter")


class RestartLimit:
    """At most `times` restarts within `within_s`."""

    def __init__(self, times: int, within_s: float) -> None:
        self._times = times
        self._within_s = within_s
        self._at_s: deque[float] = deque()

    def allow(self, now_s: float) -> bool:
        """Whether one more is allowed now; if so, it is counted."""
        while self._at_s and now_s - self._at_s[0] > self._within_s:
            self._at_s.popleft()
        if len(self._at_s) >= self._times:
            return False
        self._at_s.append(now_s)
        return True


class AutoRestart:
    """Starts a new process when the old one has ended. When the limit is reached, the kernel counts as dead."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._limit = RestartLimit(kernel.settings.restarts, kernel.settings.restarts_within_s)
        self._task: asyncio.Task[None] | None = None
        self._starting = False
        kernel.on_close(self.stop)

    def exited(self, how: str) -> None:
        """Called when the process has ended unexpectedly."""
        if self._starting:
            self._kernel.client.died_while_starting(how)
            return
        if not self._limit.allow(asyncio.get_running_loop().time()):
            self._kernel.lost(f"{how}. It died too often, and is not restarted again")
            return
        log.warning("the kernel %s died: %s; it is restarted", self._kernel.id, how)
        self._task = asyncio.get_running_loop().create_task(self._restart(how))

    async def _restart(self, how: str) -> None:
        self._starting = True
        try:
            await self._kernel.restart_dead(how)
        except TrunklineError as error:
            # The new process died while it started, or does not answer. This counts as another unexpected end.
            self._starting = False
            self.exited(str(error))
        finally:
            self._starting = False

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
