"""Detects executions whose reply or idle status was lost.

A kernel processes one queue of requests, and reports busy and then idle for each. An execution ends with its reply and
its idle status. If one arrives and the other does not follow, a cheap request is sent to the same queue. When that is
complete, nothing more of the execution can arrive.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from trunkline.jupyter.errors import KernelClosed, KernelError
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.message_types import SHELL
from trunkline.jupyter.router import KernelRouter
from trunkline.jupyter.wire import KernelMessage

log = logging.getLogger("trunkline.jupyter")

GRACE_S: Final = 0.5
"""How long after the first end of an execution the second may arrive."""
MAX_GRACE_S: Final = 30.0
ENDS: Final = 2
"""The two ends of a request: its reply, and its idle status."""
REQUEST: Final = "execute_request"
REPLY: Final = "execute_reply"

Ask = Callable[..., Awaitable[Execution]]


class CompletionCheck:
    """The check of one client. `ask` sends a request; `start` runs a coroutine in the background."""

    def __init__(self, router: KernelRouter, ask: Ask, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._router = router
        self._ask = ask
        self._start = start
        self._expected: dict[str, asyncio.TimerHandle] = {}
        """The time of the check, by request."""

    def notice(self, message: KernelMessage) -> None:
        """Called when the reply or the idle status of a request has arrived, after its execution has received it."""
        if message.header.msg_type == REPLY or message.parent.msg_type == REQUEST:
            self.expect(message.request_id or "")

    def expect(self, request_id: str) -> None:
        """Check later whether it is complete, unless it is already."""
        if self._router.open_execution(request_id) is None:
            if (timer := self._expected.pop(request_id, None)) is not None:
                timer.cancel()
        elif request_id not in self._expected:
            loop = asyncio.get_running_loop()
            self._expected[request_id] = loop.call_later(GRACE_S, self._overdue, request_id)

    def _overdue(self, request_id: str) -> None:
        del self._expected[request_id]
        if self._router.open_execution(request_id) is not None:
            self._start(self._confirm(request_id))

    async def _confirm(self, request_id: str) -> None:
        with suppress(KernelError, KernelClosed):  # the tasks that wait for the execution get them, too
            await self._ask_until_complete(request_id)

    async def _ask_until_complete(self, request_id: str) -> None:
        """Repeat the check request until the kernel has answered it, or the execution is no longer needed."""
        grace_s = GRACE_S
        while (execution := self._router.open_execution(request_id)) is not None:
            # Not referenced while waiting: it may be dropped, and the kernel may be busy for a long time.
            ended, subshell_id, execution = execution.ended, execution.subshell_id, None
            question = await self._ask(SHELL, "kernel_info_request", {}, math.inf, subshell_id=subshell_id)
            try:
                answered = False
                while not answered:
                    either = await asyncio.wait((question.ended, ended), timeout=grace_s, return_when=FIRST_COMPLETED)
                    # One of the two ends is enough: the other had time to arrive.
                    answered = bool(either[0]) or len(question.missing) < ENDS
                    grace_s = min(2 * grace_s, MAX_GRACE_S)
            finally:
                self._router.retire(question, asyncio.get_running_loop().time())
            if question.failure is not None:
                return
            execution = self._router.open_execution(request_id)
            if execution is not None and not set(execution.missing) & set(question.missing):
                self._lose(execution)

    def _lose(self, execution: Execution) -> None:
        log.warning(
            "execution %s of kernel %s is not complete: %s was lost on the way. Outputs may be missing, too",
            execution.id,
            self._router.kernel_id,
            " and ".join(execution.missing),
        )
        execution.lose()
        self._router.retire(execution, asyncio.get_running_loop().time())

    def stop(self) -> None:
        for timer in self._expected.values():
            timer.cancel()
        self._expected.clear()
