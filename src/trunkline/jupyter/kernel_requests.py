"""Asking a kernel: requests of all kinds, and what they need. The lower half of `Kernel`."""

from __future__ import annotations

import asyncio
import getpass
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from trunkline.bus.bus import Bus
from trunkline.clock import World
from trunkline.errors import EncodeError, RequestTimeout
from trunkline.jupyter.awaitable_context import AwaitableContext
from trunkline.jupyter.comm import Comm
from trunkline.jupyter.errors import KernelClosed, KernelDied
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.handshake import Handshake
from trunkline.jupyter.link import KernelLink
from trunkline.jupyter.message_types import CONTROL, SHELL, STDIN
from trunkline.jupyter.metrics import Tracing
from trunkline.jupyter.publisher import KernelPublisher
from trunkline.jupyter.result import Result
from trunkline.jupyter.router import KernelRouter
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import PROTOCOL_VERSION, Fault, Header, KernelMessage
from trunkline.message import NORMAL

log = logging.getLogger("trunkline.jupyter")

ASK_TIMEOUT_S: Final = 30.0
DEAD: Final = "dead"
RESTARTING: Final = "restarting"
STARTING: Final = "starting"

OnInput = Callable[[str, bool], str | Awaitable[str]]
"""Gives what a person would type: called with the prompt, and whether it is a password."""


class Life(msgspec.Struct, frozen=True):
    """What can be done to a kernel whose process is ours."""

    interrupt: Callable[[], Awaitable[None]]
    restart: Callable[[], Awaitable[None]]
    shutdown: Callable[[bool], Awaitable[None]]


class KernelRequests:
    def __init__(
        self,
        kernel_id: str,
        link: KernelLink,
        *,
        session: str,
        world: World | None = None,
        settings: KernelSettings | None = None,
        bus: Bus | None = None,
        life: Life | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.id = kernel_id
        self.session = session
        self.settings = settings or KernelSettings()
        self.info: Mapping[str, Any] = {}
        """What the kernel says of itself: language, version, protocol."""
        self.state = STARTING
        self.connection_file: Path | None = None
        """Where others find it, if it has sockets."""
        self.life = life
        self.link = link
        self.username = getpass.getuser()
        self._world = world or World()
        self.router = KernelRouter(kernel_id, session, self._world, self.settings)
        self.router.comms.send = self._send_comm
        self.publisher = None if bus is None else KernelPublisher(bus, session, self.settings.max_unpublished)
        self._tracing = tracing
        self._faults: Counter[Fault] = Counter()
        self._ready = asyncio.Event()
        """Clear while it starts anew: whoever asks then waits."""
        self._handshake = Handshake(kernel_id, self.settings)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._dead: str | None = None
        self._gone = asyncio.Event()
        self._closed = False
        self._on_close: list[Callable[[], Awaitable[None]]] = []

    def execute(
        self,
        code: str,
        *,
        silent: bool = False,
        store_history: bool | None = None,
        user_expressions: Mapping[str, str] | None = None,
        stop_on_error: bool = True,
        on_input: OnInput | None = None,
        timeout_s: float | None = None,
        priority: int = NORMAL,
        where: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AwaitableContext[Execution]:
        """Have code executed: `execution = await kernel.execute(code)`, or `async with kernel.execute(code) as …`.

        Given up after `timeout_s` (300 s if not given, `math.inf` for never). With `on_input`, the code may ask for
        input. Messages of a higher priority are handed out first. `where` gives channels a filter on what is in their
        messages: `{"stream": "payload.content.name == 'stderr'"}`; the result has everything all the same.
        """
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent if store_history is None else store_history,
            "user_expressions": dict(user_expressions or {}),
            "allow_stdin": on_input is not None,
            "stop_on_error": stop_on_error,
        }
        wait_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
        options: dict[str, Any] = {"code": code, "on_input": on_input, "priority": priority, "where": where}
        asking = self._ask(SHELL, "execute_request", content, wait_s, metadata=metadata, **options)
        return AwaitableContext(asking, Execution.close)

    async def run(self, code: str, **options: Any) -> Result:
        """Execute, and wait for the result; of what is late, nothing is kept."""
        async with self.execute(code, **options) as execution:
            return await execution.result()

    async def ask(
        self,
        msg_type: str,
        content: Mapping[str, Any] | None = None,
        *,
        socket: str = SHELL,
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> Mapping[str, Any]:
        """Send any request and return the content of its reply. Raises RequestTimeout."""
        execution = await self._ask(socket, msg_type, content or {}, timeout_s)
        reply = await execution.replied()
        # Some replies come without a word on iopub: what was answered is no request any more.
        self.router.retire(execution, asyncio.get_running_loop().time())
        if reply is None:
            self.router.unregister(execution.id)
            raise RequestTimeout(execution.id, f"{socket} of kernel {self.id}", timeout_s, None)
        return reply.content

    async def complete(self, code: str, cursor_pos: int | None = None, **options: Any) -> Mapping[str, Any]:
        """What could stand at the cursor."""
        position = len(code) if cursor_pos is None else cursor_pos
        return await self.ask("complete_request", {"code": code, "cursor_pos": position}, **options)

    async def inspect(
        self, code: str, cursor_pos: int | None = None, detail_level: int = 0, **options: Any
    ) -> Mapping[str, Any]:
        """What is known of what stands at the cursor."""
        position = len(code) if cursor_pos is None else cursor_pos
        content = {"code": code, "cursor_pos": position, "detail_level": detail_level}
        return await self.ask("inspect_request", content, **options)

    async def history(self, n: int = 100, *, output: bool = False, raw: bool = True, **more: Any) -> Mapping[str, Any]:
        """What was executed: the last `n`, or what `more` says (`hist_access_type`, `pattern`, `session`, …)."""
        content = {"hist_access_type": "tail", "n": n, "output": output, "raw": raw, **more}
        return await self.ask("history_request", content)

    async def is_complete(self, code: str, **options: Any) -> Mapping[str, Any]:
        """Whether the code could be executed as it is, or needs another line."""
        return await self.ask("is_complete_request", {"code": code}, **options)

    async def comm_info(self, target_name: str | None = None, **options: Any) -> Mapping[str, Any]:
        """The comms that are open in the kernel."""
        return await self.ask(
            "comm_info_request", {} if target_name is None else {"target_name": target_name}, **options
        )

    async def debug(self, content: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
        """Pass a message of the debug adapter protocol through. Its events are seen by those who `subscribe`."""
        return await self.ask("debug_request", content, socket=CONTROL, **options)

    async def open_comm(
        self, target_name: str, data: Mapping[str, Any] | None = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Comm:
        """Open a comm to a target of the kernel."""
        comm = self.router.comms.add(self._world.uuid7(), target_name, data or {})
        content = {"comm_id": comm.id, "target_name": target_name, "data": data or {}}
        await self.post(SHELL, "comm_open", content, metadata=metadata)
        return comm

    def on_comm(self, target_name: str, callback: Callable[[Comm, KernelMessage], object]) -> None:
        """Call `callback(comm, message)` when the kernel opens a comm to this target."""
        self.router.comms.on_open(target_name, callback)

    @property
    def comms(self) -> list[Comm]:
        """All that are open."""
        return self.router.comms.all()

    def comm(self, comm_id: str) -> Comm | None:
        """The one of this id, if it is open."""
        return self.router.comms.get(comm_id)

    def resume(self, request_id: str, timeout_s: float | None = None) -> Execution:
        """Take up a request that was sent before, or by hand: what has come of it so far is claimed, in order."""
        self._check_open()
        wait_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
        if (known := self.router.claim(request_id)) is not None:
            if not known.complete:
                self._register(known, SHELL, wait_s)
            return known
        execution = self._execution(request_id, wait_s)
        self._register(execution, SHELL, wait_s)
        return execution

    def _execution(self, request_id: str, timeout_s: float, **options: Any) -> Execution:
        return Execution(
            request_id,
            self._world,
            self.settings,
            sent_at_s=asyncio.get_running_loop().time(),
            timeout_s=timeout_s,
            close=self.router.unregister,
            **options,
        )

    def _register(self, execution: Execution, socket: str, timeout_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self.router.register(execution, f"{socket} of kernel {self.id}", now_s, timeout_s)

    async def _ask(
        self, socket: str, msg_type: str, content: Mapping[str, Any], timeout_s: float, **options: Any
    ) -> Execution:
        self._check_open()
        if not self._ready.is_set():
            await self._ready.wait()
            self._check_open()
        return await self._begin(socket, msg_type, content, timeout_s, **options)

    async def _begin(
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
    ) -> Execution:
        request = self.compose(socket, msg_type, content, metadata=metadata, priority=priority)
        execution = self._execution(request.id, timeout_s, code=code, priority=priority, where=where)
        if on_input is not None:
            execution.on_input = lambda message: self._start(self._give_input(message, on_input))
        if self._tracing is not None:
            self._tracing.begin(request, execution)
        # Registered before it is sent: the fastest answer finds it.
        self._register(execution, socket, timeout_s)
        try:
            await self._send(request)
        except BaseException:
            execution.close()
            raise
        return execution

    async def post(self, socket: str, msg_type: str, content: Mapping[str, Any], **options: Any) -> None:
        """Send what has no reply."""
        self._check_open()
        await self._send(self.compose(socket, msg_type, content, **options))

    async def _send_comm(self, msg_type: str, content: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        await self.post(SHELL, msg_type, content, buffers=buffers)

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
    ) -> KernelMessage:
        now = datetime.fromtimestamp(self._world.time_ns() / 1e9, UTC).isoformat().replace("+00:00", "Z")
        header = Header(self._world.uuid7(), msg_type, self.session, self.username, now, PROTOCOL_VERSION)
        try:
            return self.link.wire.compose(socket, header, content, parent, metadata, buffers, priority)
        except (TypeError, ValueError) as error:
            raise EncodeError(f"a {msg_type} cannot be written as JSON: {error}") from error

    async def _send(self, message: KernelMessage) -> None:
        await self.link.send(message)
        self._publish(message)

    def _publish(self, message: KernelMessage) -> None:
        if self.publisher is not None:
            self.publisher.put(message, None if self._tracing is None else self._tracing.of(message))

    async def _give_input(self, message: KernelMessage, on_input: OnInput) -> None:
        try:
            value = on_input(str(message.content.get("prompt", "")), bool(message.content.get("password")))
            text = value if isinstance(value, str) else await value
        except Exception:
            log.exception("what was to give the input raised: the kernel gets an empty line")
            text = ""
        await self.post(STDIN, "input_reply", {"value": text, "status": "ok"}, parent=message.header)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_open(self) -> None:
        if self._closed:
            raise KernelClosed(self.id)
        if self._dead is not None:
            raise KernelDied(self.id, self._dead)
