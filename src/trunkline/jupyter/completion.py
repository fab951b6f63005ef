"""Executions whose reply or whose idle status was lost on the way.

A kernel works through one queue of requests, and says of each that it is busy, and then idle. When one of the two ends
of an execution has come and the other does not follow, the kernel is asked something cheap in the same queue. Once that
question is complete, nothing more of the execution can come.
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
"""The second end of an execution has so long to follow the first."""
MAX_GRACE_S: Final = 30.0
ENDS: Final = 2
"""Of a request: its reply, and its idle status."""
REQUEST: Final = "execute_request"
REPLY: Final = "execute_reply"

Ask = Callable[..., Awaitable[Execution]]


class CompletionCheck:
    """Of one client. `ask` sends a request; `start` runs a coroutine in the background."""

    def __init__(self, router: KernelRouter, ask: Ask, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._router = router
        self._ask = ask
        self._start = start
        self._expected: dict[str, asyncio.TimerHandle] = {}
        """By request: when it is looked at."""

    def notice(self, message: KernelMessage) -> None:
        """One of the two ends of a request has come; it was given to its execution before."""
        if message.header.msg_type == REPLY or message.parent.msg_type == REQUEST:
            self.expect(message.request_id or "")

    def expect(self, request_id: str) -> None:
        """Look after a while whether it is complete; not at all if it is already."""
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
        with suppress(KernelError, KernelClosed):  # those who wait for the execution get them, too
            await self._ask_until_complete(request_id)

    async def _ask_until_complete(self, request_id: str) -> None:
        """Until the kernel has answered where the execution has not, or nobody waits for the execution."""
        grace_s = GRACE_S
        while (execution := self._router.open_execution(request_id)) is not None:
            # Not held meanwhile: it may be dropped, and the kernel may be busy for long before it answers.
            ended, subshell_id, execution = execution.ended, execution.subshell_id, None
            question = await self._ask(SHELL, "kernel_info_request", {}, math.inf, subshell_id=subshell_id)
            try:
                answered = False
                while not answered:
                    either = await asyncio.wait((question.ended, ended), timeout=grace_s, return_when=FIRST_COMPLETED)
                    # Half an answer is one: the other half had a while to come.
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
