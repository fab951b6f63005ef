"""The client of one kernel: sending, receiving, and liveness. `Kernel` is built on it."""

from __future__ import annotations

import asyncio
import getpass
import inspect
import logging
import math
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from trunkline.clock import World
from trunkline.errors import EncodeError
from trunkline.jupyter.completion import REPLY, CompletionCheck
from trunkline.jupyter.errors import KernelClosed, KernelDied, KernelRestarted
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.handshake import Handshake
from trunkline.jupyter.link import KernelLink
from trunkline.jupyter.message_types import IOPUB, SHELL, STDIN
from trunkline.jupyter.metrics import Tracing
from trunkline.jupyter.publisher import KernelPublisher
from trunkline.jupyter.router import KernelRouter
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import PROTOCOL_VERSION, Fault, Header, KernelMessage, SubshellHeader
from trunkline.message import NORMAL

log = logging.getLogger("trunkline.jupyter")

DEAD: Final = "dead"
RESTARTING: Final = "restarting"
STARTING: Final = "starting"

OnInput = Callable[[str, bool], str | Awaitable[str]]
"""Returns the user's input. Called with the prompt, and whether it is a password."""


class KernelClient:
    """One session with one kernel, in one event loop."""

    def __init__(
        self,
        kernel_id: str,
        link: KernelLink,
        session: str,
        world: World,
        settings: KernelSettings,
        publisher: KernelPublisher | None,
        tracing: Tracing | None,
    ) -> None:
        self.id = kernel_id
        self.session = session
        self.link = link
        self.settings = settings
        self.username = getpass.getuser()
        self.world = world
        self.router = KernelRouter(kernel_id, session, world, settings)
        self.publisher = publisher
        self.info: Mapping[str, Any] = {}
        self.state = STARTING
        self.faults: Counter[Fault] = Counter()
        self.ready = asyncio.Event()
        """Not set while the kernel restarts; requests wait for it."""
        self.gone = asyncio.Event()
        """Set when the kernel has died."""
        self.dead: str | None = None
        self.closed = False
        self._tracing = tracing
        self._handshake = Handshake(kernel_id, settings)
        self._tasks: set[asyncio.Task[None]] = set()
        self._completion = CompletionCheck(self.router, self.ask, self._start)
        self._sweeper: asyncio.TimerHandle | None = None

    # Connecting

    async def open(self) -> None:
        self._sweep()
        await self.greet()

    async def greet(self) -> None:
        """Connect, and return when no message of the kernel can be missed. Requests wait until then."""
        self.ready.clear()
        self.gone.clear()
        self.dead = None
        self.state = STARTING
        greeting = self._handshake = Handshake(self.id, self.settings)
        try:
            await self.link.open(self)
            await greeting.run(lambda socket: self.begin(socket, "kernel_info_request", {}, math.inf))
        except BaseException:
            self.dead = greeting.died or "it did not answer"
            self.state = DEAD
            raise
        finally:
            self.ready.set()
            for execution in greeting.asked:
                if execution.reply is not None:
                    self.info = execution.reply.content
                # Its remaining messages are expected, and ignored.
                self.router.retire(execution, asyncio.get_running_loop().time())
        if self.state == STARTING:
            self.state = "idle"

    def check_open(self) -> None:
        if self.closed:
            raise KernelClosed(self.id)
        if self.dead is not None:
            raise KernelDied(self.id, self.dead)

    def _sweep(self) -> None:
        """Clean up now and periodically. It takes microseconds."""
        loop = asyncio.get_running_loop()
        self.router.cleanup(loop.time())
        self._sweeper = loop.call_later(self.settings.cleanup_interval_s, self._sweep)

    # Receiving: called by the link

    def take(self, messages: list[KernelMessage]) -> None:
        if messages[0].socket == IOPUB:
            self._handshake.iopub_live.set()
        if self.publisher is not None:
            for message in messages:
                self.publish(message)
        self.router.route(messages, asyncio.get_running_loop().time())
        for message in messages:
            kind = message.header.msg_type
            if kind == "status":
                state = str(message.content.get("execution_state", self.state))
                self._notice(state, message)
                if state == "idle":
                    self._completion.notice(message)
            elif kind == REPLY:
                self._completion.notice(message)

    def count_fault(self, fault: Fault, why: str) -> None:
        self.faults[fault] += 1
        if fault is Fault.BAD_SIGNATURE:
            self._handshake.bad_signature()
        log.warning("kernel %s: %s (%s)", self.id, why, fault.value)

    def died_while_starting(self, how: str) -> None:
        """Called when the process of the kernel ended before the kernel answered."""
        self._handshake.lost(how)

    def heart_beats(self) -> None:
        """Called when a heartbeat was answered: the process is alive."""
        self._handshake.process_lives = True

    def lost(self, how: str) -> None:
        """Called when the kernel is gone. All waiting requests fail immediately."""
        if self.dead is not None or self.closed:
            return
        self.dead = how
        self.state = DEAD
        log.warning("the kernel %s died: %s", self.id, how)
        self.announce(DEAD, how)
        self.router.fail_all(lambda: KernelDied(self.id, how))
        self.router.end_subscriptions()
        self._handshake.lost(how)
        self.gone.set()

    def _notice(self, state: str, message: KernelMessage) -> None:
        """Record the new state of the kernel. The client that shares the kernel also publishes its end."""
        if message.parent.msg_id or state not in (DEAD, RESTARTING):
            self.state = state
        elif state == DEAD:
            self.lost(str(message.content.get("reason", "it no longer exists")))
        else:
            self.state = state
            self.router.fail_all(lambda: KernelRestarted(self.id))

    # Sending

    async def ask(
        self, socket: str, msg_type: str, content: Mapping[str, Any], timeout_s: float, **options: Any
    ) -> Execution:
        """Send a request, as `begin`, as soon as the kernel has started."""
        self.check_open()
        if not self.ready.is_set():
            await self.ready.wait()
            self.check_open()
        return await self.begin(socket, msg_type, content, timeout_s, **options)

    async def begin(
        self,
        socket: str,
        msg_type: str,
        content: Mapping[str, Any],
        timeout_s: float,
        *,
        code: str = "",
        on_input: OnInput | None = None,
        priority: int = NORMAL,
        where: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        subshell_id: str | None = None,
    ) -> Execution:
        request = self.compose(socket, msg_type, content, metadata=metadata, priority=priority, subshell_id=subshell_id)
        execution = self.execution(request.id, timeout_s, code=code, priority=priority, where=where)
        execution.subshell_id = subshell_id
        if on_input is not None:
            execution.on_input = lambda message: self._start(self._give_input(message, on_input))
        if self._tracing is not None:
            self._tracing.begin(request, execution)
        # Registered before it is sent, so that even the fastest answer finds it.
        self.register(execution, socket, timeout_s)
        try:
            await self._send(request)
        except BaseException:
            execution.close()
            raise
        return execution

    def resume(self, request_id: str, timeout_s: float) -> Execution:
        """Register a request that was sent before, by another client or by an earlier run of this one."""
        self.check_open()
        if (known := self.router.claim(request_id)) is not None:
            if not known.complete:
                self.register(known, SHELL, timeout_s)
            return known
        execution = self.execution(request_id, timeout_s)
        self.register(execution, SHELL, timeout_s)
        if len(execution.missing) == 1:
            self._completion.expect(request_id)
        return execution

    def execution(self, request_id: str, timeout_s: float, **options: Any) -> Execution:
        now_s = asyncio.get_running_loop().time()
        return Execution(
            request_id,
            self.world,
            self.settings,
            sent_at_s=now_s,
            timeout_s=timeout_s,
            keeper=self.router,
            **options,
        )

    def register(self, execution: Execution, socket: str, timeout_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self.router.register(execution, f"{socket} of kernel {self.id}", now_s, timeout_s)

    async def post(self, socket: str, msg_type: str, content: Mapping[str, Any], **options: Any) -> None:
        """Send a message that has no reply."""
        self.check_open()
        await self._send(self.compose(socket, msg_type, content, **options))

    def compose(
        self,
        socket: str,
        msg_type: str,
        content: Mapping[str, Any],
        *,
        parent: Header = Header(),
        metadata: Mapping[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
        priority: int = NORMAL,
        subshell_id: str | None = None,
    ) -> KernelMessage:
        now = datetime.fromtimestamp(self.world.time_ns() / 1e9, UTC).isoformat().replace("+00:00", "Z")
        words = (self.world.uuid7(), msg_type, self.session, self.username, now, PROTOCOL_VERSION)
        header = Header(*words) if subshell_id is None else SubshellHeader(*words, subshell_id)
        self.router.issued(header.msg_id)
        try:
            return self.link.wire.compose(socket, header, content, parent, metadata, buffers, priority)
        except (TypeError, ValueError) as error:
            raise EncodeError(f"a {msg_type} cannot be written as JSON: {error}") from error

    async def _send(self, message: KernelMessage) -> None:
        await self.link.send(message)
        self.publish(message)

    def publish(self, message: KernelMessage) -> None:
        if self.publisher is not None:
            self.publisher.put(message, None if self._tracing is None else self._tracing.of(message))

    def announce(self, state: str, reason: str) -> None:
        """Publish a state that no message of the kernel contains."""
        if self.publisher is not None:
            self.publish(self.compose(IOPUB, "status", {"execution_state": state, "reason": reason}))

    async def _give_input(self, message: KernelMessage, on_input: OnInput) -> None:
        prompt, password = str(message.content.get("prompt", "")), bool(message.content.get("password"))
        try:
            given = on_input if inspect.iscoroutinefunction(on_input) else None
            value = given(prompt, password) if given else await _in_thread(lambda: on_input(prompt, password))
            text = value if isinstance(value, str) else await value
        except Exception:
            log.exception("on_input raised an error: the kernel gets an empty line")
            text = ""
        await self.post(STDIN, "input_reply", {"value": text, "status": "ok"}, parent=message.header)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Closing

    async def stop(self) -> None:
        """Accept no more requests, and end the background tasks."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._completion.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def aclose(self) -> None:
        await self.link.aclose()
        if self.publisher is not None:
            await self.publisher.aclose()
        self.router.close()


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Call a function that may block, such as `input`.

    The loop can end before the thread, because a user may never answer.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = function()
        except Exception as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="kernel-input", daemon=True).start()
    return await done
