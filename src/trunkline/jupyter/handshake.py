"""The handshake with a kernel: repeat kernel_info requests until the kernel answers and the iopub subscription is live.

A ZeroMQ subscription becomes live some time after it was made, without notice. The first message on it is the proof:
the welcome message of newer kernels, or the busy status that the request of this client causes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trunkline.jupyter.errors import KernelNotStarted, WrongKernelKey
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.message_types import CONTROL, SHELL
from trunkline.jupyter.settings import KernelSettings


class Handshake:
    def __init__(self, kernel_id: str, settings: KernelSettings) -> None:
        self._kernel_id = kernel_id
        self._settings = settings
        self.iopub_live = asyncio.Event()
        """Set when a message arrived on iopub, or the kernel died."""
        self.asked: list[Execution] = []
        self.died: str | None = None
        self.process_lives = False
        """Whether a heartbeat was answered."""
        self._wrong_key = False

    async def run(self, ask: Callable[[str], Awaitable[Execution]]) -> None:
        """Send requests with `ask` until one is answered. Raises KernelNotStarted after `start_timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.start_timeout_s
        while True:
            # Also on control: a busy kernel does not answer on shell.
            self.asked += [await ask(socket) for socket in (SHELL, CONTROL)]
            if await self._answered(min(self._settings.nudge_s, deadline_s - loop.time())):
                return
            if self._wrong_key:
                raise WrongKernelKey(
                    f"the kernel {self._kernel_id} runs, but its messages are not signed with the key of the"
                    " connection file: the file belongs to an earlier kernel, or was changed",
                    self._kernel_id,
                )
            if loop.time() >= deadline_s:
                raise KernelNotStarted(
                    f"the kernel {self._kernel_id} has not answered for {self._settings.start_timeout_s:g} s:"
                    f" {self._what_came()}",
                    self._kernel_id,
                )

    def _what_came(self) -> str:
        iopub = "it sent messages on iopub" if self.iopub_live.is_set() else "it sent nothing on iopub"
        if self.process_lives:
            return (
                f"{iopub}, but its heartbeat answers, so its process runs. It is too busy to answer on control, or the"
                " connection file has another key"
            )
        return f"{iopub}. Check what it wrote to stderr, or raise start_timeout_s"

    def bad_signature(self) -> None:
        """Called when a message was signed with another key."""
        self._wrong_key = True

    def lost(self, how: str) -> None:
        """Called when the kernel died during the handshake."""
        self.died = how
        self.iopub_live.set()

    async def _answered(self, timeout_s: float) -> bool:
        """Whether a request was answered, and iopub is live."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + max(timeout_s, 0.0)
        replies = [asyncio.ensure_future(execution.replied()) for execution in self.asked if execution.reply is None]
        iopub_live = asyncio.ensure_future(self.iopub_live.wait())
        try:
            while True:
                if self.died is not None:
                    why = f"the kernel {self._kernel_id} died while it started: {self.died}"
                    raise KernelNotStarted(why, self._kernel_id, died=True)
                if self.iopub_live.is_set() and any(execution.reply is not None for execution in self.asked):
                    return True
                waiting = [future for future in (*replies, iopub_live) if not future.done()]
                left_s = deadline_s - loop.time()
                if left_s <= 0 or not waiting:
                    return False
                await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in (*replies, iopub_live):
                future.cancel()
            await asyncio.gather(*replies, iopub_live, return_exceptions=True)
