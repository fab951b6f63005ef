"""A request to a kernel and all its messages: five channels to read, and one result to wait for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Protocol, Self

from trunkline.clock import World
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.jupyter.channels import KernelChannel, channel_filters, put
from trunkline.jupyter.errors import ExecutionTimeout, KernelError
from trunkline.jupyter.message_types import CHANNEL_OF, COMM, DISPLAY, EXECUTION, IOPUB, STATUS, STREAM
from trunkline.jupyter.outputs import Outputs, display_id_of
from trunkline.jupyter.result import IDLE, REPLY, CodeFailure, Result, Timings
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import KernelMessage
from trunkline.message import NORMAL

LATE = "late"


class ExecutionKeeper(Protocol):
    """Routes messages to executions. An execution notifies it when it is closed or extended."""

    def unregister(self, request_id: str) -> None: ...

    def extend(self, request_id: str, now_s: float, timeout_s: float) -> None: ...


class Execution:
    """One request. It collects the kernel's messages about it; the caller reads the channels, or waits for the result.

    `who` is the name of the client that sent the request, if it was another client. An execution of another client is
    complete when the kernel is idle: the reply goes to that client only.
    """

    def __init__(
        self,
        request_id: str,
        world: World,
        settings: KernelSettings,
        *,
        code: str = "",
        who: str = "",
        sent_at_s: float = 0.0,
        timeout_s: float = math.inf,
        priority: int = NORMAL,
        needs_reply: bool = True,
        where: Mapping[str, str] | None = None,
        keeper: ExecutionKeeper | None = None,
    ) -> None:
        self.id = request_id
        self.code = code
        self.who = who
        self.priority = priority
        self.reply: KernelMessage | None = None
        self.outputs = Outputs(settings.max_output_bytes)
        self._captures: list[Outputs] = []
        self._sink = self.outputs
        self.complete = False
        self.lost = False
        """Whether the missing parts were lost and will not arrive."""
        self.subshell_id: str | None = None
        self.failure: KernelError | None = None
        self.on_input: Callable[[KernelMessage], None] | None = None
        self.completed: Callable[[Execution], None] | None = None
        """Called when it is complete."""
        self._world = world
        self._settings = settings
        self._sent_at_s = sent_at_s
        self._deadline_s = sent_at_s + timeout_s
        self._needs_reply = needs_reply
        self._filters = channel_filters(where or {})
        self._keeper = keeper
        self._boxes: dict[str, Inbox] = {}
        self._streams: dict[str, KernelChannel] = {}
        self._times: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when it is complete, or when nothing more will arrive."""
        self._replied: asyncio.Future[None] = self._loop.create_future()
        self._execution_count: int | None = None
        self._error: CodeFailure | None = None
        self._late = 0
        self._closed = False
        self.dates: dict[str, str] = {}
        """The times of the kernel's messages, by its own clock, as notebooks store them."""

    # Receiving

    def take(self, message: KernelMessage) -> bool:
        """Add a message of this request. Returns True if the execution is now complete."""
        if message.socket != IOPUB:
            return self._take_word(message)
        kind = message.header.msg_type
        channel = CHANNEL_OF[kind]
        box = self._boxes.get(channel)
        if box is None:
            box = self._box(channel)
        put(box, message)
        content = message.content
        if channel is STREAM:
            self._sink.write(str(content.get("name", "")), str(content.get("text", "")))
        elif channel is STATUS:
            return self._take_status(content.get("execution_state"), message.header.date)
        elif channel is EXECUTION:
            self._take_execution(kind, message)
        elif channel is DISPLAY:
            self.show(message)
        return False

    def show(self, message: KernelMessage) -> None:
        """Apply a message that displays, changes or clears output."""
        content = message.content
        match message.header.msg_type:
            case "display_data":
                self._sink.add(message)
            case "clear_output":
                self._sink.clear(bool(content.get("wait")))
            case _:
                if (display_id := display_id_of(content)) is not None:
                    self.outputs.update(display_id, content)

    def capture(self, outputs: Outputs) -> None:
        """Redirect the outputs of this execution to `outputs`."""
        self._captures.append(outputs)
        self._sink = outputs

    def release(self, outputs: Outputs) -> None:
        """End a redirection. An earlier one becomes active again."""
        if outputs in self._captures:
            self._captures.remove(outputs)
        self._sink = self._captures[-1] if self._captures else self.outputs

    def update_shown(self, message: KernelMessage) -> None:
        """Apply a change that another execution made to a display of this one."""
        (self.take_late if self.complete else self.show)(message)

    def take_late(self, message: KernelMessage) -> None:
        """Add a message that arrived after completion: from a thread that continued, or a changed display."""
        self._late += 1
        put(self._boxes.get(LATE) or self._box(LATE), message)
        match CHANNEL_OF.get(message.header.msg_type):
            case "stream":
                self._sink.write(str(message.content.get("name", "")), str(message.content.get("text", "")))
            case "display":
                self.show(message)
            case "execution" if message.header.msg_type != "execute_input":
                self._sink.add(message)

    def _take_word(self, message: KernelMessage) -> bool:
        if message.header.msg_type == "input_request":
            if self.on_input is not None:
                self.on_input(message)
            return False
        self.reply = message
        self.dates["shell.execute_reply"] = message.header.date
        self._times.setdefault("replied", self._loop.time())
        count = message.content.get("execution_count")
        if isinstance(count, int):
            self._execution_count = count
        if message.content.get("status") == "error" and self._error is None:
            self._error = CodeFailure.of(message.content)
        if not self._replied.done():
            self._replied.set_result(None)
        return self._check()

    def _take_status(self, state: object, date: str) -> bool:
        self.dates.setdefault(f"iopub.status.{state}", date)
        if state == "busy":
            self._times.setdefault("started", self._loop.time())
        elif state == "idle":
            self._times.setdefault("idle", self._loop.time())
            return self._check()
        return False

    def _take_execution(self, kind: str, message: KernelMessage) -> None:
        count = message.content.get("execution_count")
        if isinstance(count, int):
            self._execution_count = count
        if kind == "execute_input":
            self.dates.setdefault("iopub.execute_input", message.header.date)
            self.code = self.code or str(message.content.get("code", ""))
            return
        if kind == "error" and not self._captures:
            self._error = CodeFailure.of(message.content)
        self._sink.add(message)

    def _check(self) -> bool:
        if "idle" in self._times and (self.reply is not None or not self._needs_reply):
            self.complete = True
            self._times.setdefault("complete", self._loop.time())
            self._end()
            if self.completed is not None:
                self.completed(self)
        return self.complete

    def fail(self, error: Exception) -> None:
        """End it with an error: the kernel is gone, or the execution is no longer needed."""
        if isinstance(error, KernelError) and not self.complete:
            self.failure = error
        self._end()

    def lose(self) -> None:
        """End it as incomplete: the missing parts were lost."""
        self.lost = not self.complete
        self._end()

    def _end(self) -> None:
        for name, box in self._boxes.items():
            if name != LATE:
                box.close()
        for future in (self.ended, self._replied):
            if not future.done():
                future.set_result(None)

    # Channels

    def _box(self, channel: str) -> Inbox:
        box = self._boxes[channel] = Inbox(
            f"{channel} of {self.id}",
            channel,
            self._world.time_ns,
            capacity=self._settings.channel_capacity,
            overflow=self._settings.channel_overflow,
        )
        if (fits := self._filters.get(channel)) is not None:
            box.gate = lambda message: None if fits(message, message.decode) else f"does not match {fits.expression!r}"
        if self._closed or (self.ended.done() and channel != LATE):
            box.close()
        return box

    def channel(self, name: str) -> KernelChannel:
        """The messages of one channel, each once. It ends when the execution is complete."""
        stream = self._streams.get(name)
        if stream is None:
            box = self._boxes.get(name) or self._box(name)
            # Reading a channel keeps the execution alive.
            stream = self._streams[name] = KernelChannel(box, self._world, self)
        return stream

    @property
    def status(self) -> KernelChannel:
        """Status messages: busy, idle, starting."""
        return self.channel(STATUS)

    @property
    def execution(self) -> KernelChannel:
        """The code as the kernel received it, its result, and its error."""
        return self.channel(EXECUTION)

    @property
    def stream(self) -> KernelChannel:
        """Its output on stdout and stderr."""
        return self.channel(STREAM)

    @property
    def display(self) -> KernelChannel:
        """Displays, changes of displays, and clears."""
        return self.channel(DISPLAY)

    @property
    def comm(self) -> KernelChannel:
        """Messages of widgets and other comms."""
        return self.channel(COMM)

    @property
    def late(self) -> KernelChannel:
        """Messages after completion, until the execution is closed."""
        return self.channel(LATE)

    async def wait_for(
        self, channel: str, wanted: str | Callable[[KernelMessage], bool], timeout_s: float | None = None
    ) -> KernelMessage | None:
        """The next message of a channel that matches `wanted`; None if it ended without one. Earlier ones are consumed.

        `wanted` is a function, or a filter as `subscribe` has it. Raises StreamEmpty if none arrives within
        `timeout_s`.
        """
        return await self.channel(channel).next_wanted(wanted, timeout_s)

    # Results

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that have not arrived yet."""
        missing = [] if "idle" in self._times else [IDLE]
        if self._needs_reply and self.reply is None:
            missing.append(REPLY)
        return tuple(missing)

    async def result(self, timeout_s: float | None = None, *, raise_on_timeout: bool = False) -> Result:
        """The complete result. After `timeout_s`, or the time limit of the execution, the partial result.

        If the reply or the idle status is lost in transit, this is detected about a second after the other arrived, and
        `result.lost` is true. Raises KernelDied or KernelRestarted if the kernel is gone, and with `raise_on_timeout`
        ExecutionTimeout if it is not complete in time; each has the partial result. An error of the executed code is
        not raised here: see `result.error`, or call `result.check()`.
        """
        began_s = self._loop.time()
        await self._wait(self.ended, timeout_s)
        result = self.partial()
        if self.failure is not None:
            self.failure.result = result
            raise self.failure
        if raise_on_timeout and not result.complete:
            raise ExecutionTimeout(self.id, self._loop.time() - began_s, result)
        return result

    async def replied(self, timeout_s: float | None = None) -> KernelMessage | None:
        """The reply, as soon as it arrives; None if it does not arrive in time."""
        await self._wait(self._replied, timeout_s)
        if self.failure is not None:
            raise self.failure
        return self.reply

    async def _wait(self, future: asyncio.Future[None], timeout_s: float | None) -> None:
        """Wait until the future is done, or until `timeout_s` or the time limit is over.

        The limit may be extended meanwhile.
        """
        own_s = math.inf if timeout_s is None else self._loop.time() + timeout_s
        while not future.done():
            left_s = min(self._deadline_s, own_s) - self._loop.time()
            if left_s <= 0:
                return
            await asyncio.wait((future,), timeout=None if left_s == math.inf else left_s)

    def extend(self, more_s: float) -> None:
        """Extend the time limit, from now on, also for tasks that already wait."""
        now_s = self._loop.time()
        if now_s + more_s <= self._deadline_s:
            return
        self._deadline_s = now_s + more_s
        if self._keeper is not None:
            self._keeper.extend(self.id, now_s, more_s)

    def partial(self) -> Result:
        """The result so far."""
        reply = {} if self.reply is None else self.reply.content
        expressions = reply.get("user_expressions")
        payload = reply.get("payload")
        return Result(
            id=self.id,
            code=self.code,
            status=self._status(),
            complete=self.complete,
            missing=self.missing,
            execution_count=self._execution_count,
            outputs=tuple(self.outputs.snapshot()),
            error=self._error,
            timings=Timings(*(self._after(name) for name in ("started", "replied", "idle", "complete"))),
            user_expressions=dict(expressions) if isinstance(expressions, dict) else {},
            payload=tuple(payload) if isinstance(payload, list) else (),
            dropped=self.dropped,
            truncated=self.outputs.truncated,
            late=self._late,
            lost=self.lost,
        )

    def _status(self) -> str:
        if self.reply is not None:
            status = str(self.reply.content.get("status", "ok"))
            return "aborted" if status == "abort" else status
        if not self._needs_reply and self.complete:
            return "ok" if self._error is None else "error"
        return "open"

    def _after(self, name: str) -> float | None:
        at_s = self._times.get(name)
        return None if at_s is None else at_s - self._sent_at_s

    @property
    def complete_at_s(self) -> float | None:
        return self._times.get("complete")

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped because its channels were not read."""
        return sum(box.books.settled[Fate.DROPPED] for box in self._boxes.values())

    # The end

    def close(self) -> None:
        """Unregister the request: further messages are orphans. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        self._end()
        if (late := self._boxes.get(LATE)) is not None:
            late.close()
        if self._keeper is not None:
            self._keeper.unregister(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
