"""The entry of an execution in the table of requests, and the handling of dropped executions."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from trunkline.jupyter.execution import Execution
from trunkline.jupyter.message_types import CHANNEL_OF, IOPUB
from trunkline.jupyter.wire import KernelMessage
from trunkline.message import Message


class OpenExecution:
    """Holds a weak reference to an execution. When it is garbage-collected, `on_drop` is called in the event loop.

    An execution that may ask for input is kept alive for its callback.
    """

    __slots__ = ("_execution", "_kept", "request_id", "sender", "sent_at_s", "timeout_s", "topic")

    def __init__(
        self,
        execution: Execution,
        sender: str,
        topic: str,
        times: tuple[float, float],
        on_drop: Callable[[str], None],
    ) -> None:
        self.request_id = request_id = execution.id
        self.sender = sender
        self.topic = topic
        self.sent_at_s, self.timeout_s = times
        loop = asyncio.get_running_loop()

        def dropped(_: object) -> None:
            # From any thread: the garbage collector may run in any of them.
            if not loop.is_closed():
                loop.call_soon_threadsafe(on_drop, request_id)

        self._execution = weakref.ref(execution, dropped)
        self._kept = execution if execution.on_input is not None else None

    @property
    def deadline_s(self) -> float:
        return self.sent_at_s + self.timeout_s

    @property
    def execution(self) -> Execution | None:
        """The execution; None if it has been garbage-collected."""
        return self._execution()

    def accepts(self, message: Message) -> bool:
        assert isinstance(message, KernelMessage)
        return accepts(message)

    def answer(self, message: Message) -> bool:
        assert isinstance(message, KernelMessage)
        execution = self._execution()
        return False if execution is None else execution.take(message)

    def fail(self, error: Exception) -> None:
        execution = self._execution()
        if execution is not None:
            execution.fail(error)


def accepts(message: KernelMessage) -> bool:
    """Whether an execution has a channel for it."""
    return message.socket != IOPUB or message.header.msg_type in CHANNEL_OF
