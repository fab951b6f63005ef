"""Getting to know a kernel: asking who it is until it has answered, and until nothing it says can be missed any more.

A subscription in ZeroMQ is live some time after it was made, and nobody says when. What proves it is something that
came over it: the welcome of newer kernels, or that the kernel is busy with our question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trunkline.jupyter.errors import KernelNotStarted
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.message_types import CONTROL, SHELL
from trunkline.jupyter.settings import KernelSettings


class Handshake:
    def __init__(self, kernel_id: str, settings: KernelSettings) -> None:
        self._kernel_id = kernel_id
        self._settings = settings
        self.heard = asyncio.Event()
        """Something came on iopub."""
        self.asked: list[Execution] = []
        self.died: str | None = None

    async def run(self, ask: Callable[[str], Awaitable[Execution]]) -> None:
        """Ask again and again, with `ask` for each question; raises KernelNotStarted."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.start_timeout_s
        while True:
            # On control, too: on shell, a kernel that is busy does not answer.
            self.asked += [await ask(socket) for socket in (SHELL, CONTROL)]
            if await self._answered(min(self._settings.nudge_s, deadline_s - loop.time())):
                return
            if loop.time() >= deadline_s:
                heard = "it was heard on iopub" if self.heard.is_set() else "nothing was heard of it"
                raise KernelNotStarted(
                    f"the kernel {self._kernel_id} has not answered for {self._settings.start_timeout_s:g} s: {heard}."
                    " Look at what it wrote on stderr, or give it more time with start_timeout_s",
                    self._kernel_id,
                )

    def lost(self, how: str) -> None:
        """There is nobody to be greeted any more."""
        self.died = how
        self.heard.set()

    async def _answered(self, timeout_s: float) -> bool:
        """Whether a question was answered, and iopub is live."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + max(timeout_s, 0.0)
        replies = [asyncio.ensure_future(execution.replied()) for execution in self.asked if execution.reply is None]
        heard = asyncio.ensure_future(self.heard.wait())
        try:
            while True:
                if self.died is not None:
                    why = f"the kernel {self._kernel_id} died while it started: {self.died}"
                    raise KernelNotStarted(why, self._kernel_id, died=True)
                if self.heard.is_set() and any(execution.reply is not None for execution in self.asked):
                    return True
                waiting = [future for future in (*replies, heard) if not future.done()]
                left_s = deadline_s - loop.time()
                if left_s <= 0 or not waiting:
                    return False
                await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in (*replies, heard):
                future.cancel()
            await asyncio.gather(*replies, heard, return_exceptions=True)
