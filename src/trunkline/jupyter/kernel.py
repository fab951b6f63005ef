"""The API of a kernel: execute, request, subscribe, interrupt, restart, shut down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import msgspec

from trunkline.bus.subscription import Subscription
from trunkline.clock import World
from trunkline.delivery.options import Delivery, DeliveryOptions
from trunkline.delivery.requests import OrphanBox
from trunkline.errors import RequestTimeout, Unsupported
from trunkline.jupyter.awaitable_context import AwaitableContext
from trunkline.jupyter.client import DEAD, RESTARTING, KernelClient, OnInput
from trunkline.jupyter.comm import Comm
from trunkline.jupyter.errors import KernelClosed, KernelDied, KernelError, KernelRestarted
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.link import KernelLink
from trunkline.jupyter.message_types import CONTROL, SHELL
from trunkline.jupyter.metrics import Tracing
from trunkline.jupyter.publisher import KernelPublisher
from trunkline.jupyter.result import Result
from trunkline.jupyter.router import KernelRouter
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.stats import KernelStats as KernelStats
from trunkline.jupyter.stats import stats_of
from trunkline.jupyter.wire import KernelMessage
from trunkline.message import NORMAL
from trunkline.settings import build
from trunkline.topic import EVERYTHING

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

log = logging.getLogger("trunkline.jupyter")

ASK_TIMEOUT_S: Final = 30.0
SUBSHELLS: Final = "kernel subshells"


class Life(msgspec.Struct, frozen=True):
    """Operations on the process of a kernel that was started here."""

    interrupt: Callable[[], Awaitable[None]]
    restart: Callable[[], Awaitable[None]]
    shutdown: Callable[[bool], Awaitable[None]]
    ends_with_client: bool = True
    """Whether closing the client ends the kernel."""


class Kernel:
    """One client of one kernel, in one event loop. Any number of tasks may use it at once."""

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
        self.settings = settings = settings or KernelSettings()
        publisher = None if bus is None else KernelPublisher(bus, session, settings.max_unpublished)
        self.client = KernelClient(kernel_id, link, session, world or World(), settings, publisher, tracing)
        self.client.router.comms.send = self._send_comm
        self.life = life
        self.connection_file: Path | None = None
        """Its connection file, if it has sockets."""
        self._on_close: list[Callable[[], Awaitable[None]]] = []
        self._on_restart: list[Callable[[str], object]] = []
        self._restarts = 0

    async def open(self) -> None:
        """Connect, and return when no message of the kernel can be missed. Raises KernelNotStarted."""
        await self.client.open()

    # Properties

    @property
    def session(self) -> str:
        """The name of this client in the headers of its messages."""
        return self.client.session

    @property
    def username(self) -> str:
        return self.client.username

    @property
    def info(self) -> Mapping[str, Any]:
        """The kernel's description of itself: language, version, protocol."""
        return self.client.info

    @property
    def state(self) -> str:
        """Starting, idle, busy, restarting, dead, or closed."""
        return self.client.state

    @property
    def link(self) -> KernelLink:
        return self.client.link

    @property
    def router(self) -> KernelRouter:
        return self.client.router

    # Requests

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
        subshell_id: str | None = None,
    ) -> AwaitableContext[Execution]:
        """Execute code: `execution = await kernel.execute(code)`, or `async with kernel.execute(code) as …`.

        The time limit is `timeout_s` (300 s by default, `math.inf` for none). With `on_input`, the code may ask for
        input; a plain function is called in its own thread and may block. Messages of executions with a higher
        `priority` are delivered first. `where` sets filters on the content of messages, by channel: `{"stream":
        "payload.content.name == 'stderr'"}`; the result is not filtered.
        """
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent if store_history is None else store_history,
            "user_expressions": dict(user_expressions or {}),
            "allow_stdin": on_input is not None,
            "stop_on_error": stop_on_error,
        }
        options: dict[str, Any] = {"code": code, "on_input": on_input, "priority": priority, "where": where}
        options |= {"metadata": metadata, "subshell_id": subshell_id}
        asking = self.client.ask(SHELL, "execute_request", content, self._patience_s(timeout_s), **options)
        return AwaitableContext(asking, Execution.close)

    async def run(self, code: str, *, raise_on_timeout: bool = False, **options: Any) -> Result:
        """Execute, and wait for the result; messages that arrive later are not kept.

        After the time limit it returns what has arrived so far or, with `raise_on_timeout`, raises ExecutionTimeout.
        """
        async with self.execute(code, **options) as execution:
            return await execution.result(raise_on_timeout=raise_on_timeout)

    def _patience_s(self, timeout_s: float | None) -> float:
        return self.settings.request_timeout_s if timeout_s is None else timeout_s

    async def ask(
        self,
        msg_type: str,
        content: Mapping[str, Any] | None = None,
        *,
        socket: str = SHELL,
        timeout_s: float = ASK_TIMEOUT_S,
        subshell_id: str | None = None,
    ) -> Mapping[str, Any]:
        """Send any request and return the content of its reply. Raises RequestTimeout."""
        execution = await self.client.ask(socket, msg_type, content or {}, timeout_s, subshell_id=subshell_id)
        reply = await execution.replied()
        # Some replies come without a message on iopub, so the request is closed after its reply.
        self.router.retire(execution, asyncio.get_running_loop().time())
        if reply is None:
            self.router.unregister(execution.id)
            raise RequestTimeout(execution.id, f"{socket} of kernel {self.id}", timeout_s, None)
        return reply.content

    async def complete(self, code: str, cursor_pos: int | None = None, **options: Any) -> Mapping[str, Any]:
        """Completions at the cursor. While a cell runs, only a request with a `subshell_id` is answered."""
        position = len(code) if cursor_pos is None else cursor_pos
        return await self.ask("complete_request", {"code": code, "cursor_pos": position}, **options)

    async def inspect(
        self, code: str, cursor_pos: int | None = None, detail_level: int = 0, **options: Any
    ) -> Mapping[str, Any]:
        """Information about the object at the cursor."""
        position = len(code) if cursor_pos is None else cursor_pos
        content = {"code": code, "cursor_pos": position, "detail_level": detail_level}
        return await self.ask("inspect_request", content, **options)

    async def history(self, n: int = 100, *, output: bool = False, raw: bool = True, **more: Any) -> Mapping[str, Any]:
        """The execution history: the last `n` entries, or those that `more` selects (`pattern`, `session`, …)."""
        content = {"hist_access_type": "tail", "n": n, "output": output, "raw": raw, **more}
        return await self.ask("history_request", content)

    async def is_complete(self, code: str, **options: Any) -> Mapping[str, Any]:
        """Whether the code is complete, or needs another line."""
        return await self.ask("is_complete_request", {"code": code}, **options)

    async def comm_info(self, target_name: str | None = None, **options: Any) -> Mapping[str, Any]:
        """The comms that are open in the kernel."""
        return await self.ask(
            "comm_info_request", {} if target_name is None else {"target_name": target_name}, **options
        )

    async def debug(self, content: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
        """Send a message of the debug adapter protocol. Subscribers (`subscribe`) see its events."""
        return await self.ask("debug_request", content, socket=CONTROL, **options)

    def resume(self, request_id: str, timeout_s: float | None = None) -> Execution:
        """Register a request that was already sent. Its messages that have already arrived are claimed, in order."""
        return self.client.resume(request_id, self._patience_s(timeout_s))

    # Subshells

    @asynccontextmanager
    async def subshell(self) -> AsyncIterator[str]:
        """`async with kernel.subshell() as subshell_id`: a thread of the kernel that answers while a cell runs.

        Pass the id to `execute`, `ask`, `complete` and other requests. Raises Unsupported if the kernel has no
        subshells.
        """
        subshell_id = await self.create_subshell()
        try:
            yield subshell_id
        finally:
            if self.client.dead is None and not self.client.closed:
                await self.delete_subshell(subshell_id)

    async def create_subshell(self) -> str:
        """The id of a new subshell, to be deleted when it is no longer needed."""
        if SUBSHELLS not in (self.info.get("supported_features") or ()):
            raise Unsupported(
                f"the kernel {self.id} ({self.info.get('implementation', 'of unknown kind')})", "subshells"
            )
        reply = await self.ask("create_subshell_request", socket=CONTROL)
        return str(reply.get("subshell_id", ""))

    async def delete_subshell(self, subshell_id: str) -> None:
        await self.ask("delete_subshell_request", {"subshell_id": subshell_id}, socket=CONTROL)

    # Comms

    async def open_comm(
        self, target_name: str, data: Mapping[str, Any] | None = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Comm:
        """Open a comm to a target of the kernel."""
        comm = self.router.comms.add(self.client.world.uuid7(), target_name, data or {})
        content = {"comm_id": comm.id, "target_name": target_name, "data": data or {}}
        await self.client.post(SHELL, "comm_open", content, metadata=metadata)
        return comm

    async def _send_comm(self, msg_type: str, content: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        await self.client.post(SHELL, msg_type, content, buffers=buffers)

    def on_comm(self, target_name: str, callback: Callable[[Comm, KernelMessage], object]) -> None:
        """Call `callback(comm, message)` when the kernel opens a comm to this target."""
        self.router.comms.on_open(target_name, callback)

    @property
    def comms(self) -> list[Comm]:
        """All open comms."""
        return self.router.comms.all()

    def comm(self, comm_id: str) -> Comm | None:
        """The comm of this id, if it is open."""
        return self.router.comms.get(comm_id)

    # Receiving

    def lost(self, how: str) -> None:
        """Called when the kernel is gone. All waiting requests fail immediately."""
        self.client.lost(how)

    async def death(self) -> str:
        """Wait until the kernel has died. Returns how it died."""
        await self.client.gone.wait()
        return self.client.dead or "it was restarted"

    def answer(self, request: KernelMessage, msg_type: str, content: Mapping[str, Any]) -> None:
        """Answer a request on the bus on behalf of the kernel."""
        self.client.publish(self.client.compose(request.socket, msg_type, content, parent=request.header))

    def subscribe(self, pattern: str = EVERYTHING, **options: Unpack[DeliveryOptions]) -> Subscription:
        """`async with kernel.subscribe() as messages`: all messages of the kernel, before their requests get them.

        `pattern` is of topics `kernel.<id>.<socket>.<message type>`; `where` filters by content.
        """
        self.client.check_open()
        asked: DeliveryOptions = {"overflow": self.settings.channel_overflow, **options}
        delivery = build(Delivery, asked)

        return Subscription(lambda: self.router.subscribe(pattern, delivery))

    @property
    def orphans(self) -> OrphanBox:
        """Messages whose request is not known, or not known yet."""
        return self.router.orphans

    @property
    def others(self) -> list[Execution]:
        """Recent executions of other clients of this kernel."""
        return list(self.router.others.values())

    def stats(self) -> KernelStats:
        return stats_of(self.client, self._restarts)

    # Lifecycle

    async def interrupt(self) -> None:
        """Interrupt the running code: it gets a KeyboardInterrupt, or the equivalent of its language."""
        if self.life is not None:
            await self.life.interrupt()
        else:
            await self.ask("interrupt_request", socket=CONTROL)

    async def restart(self) -> None:
        """Start a new process in its place. Open requests end with KernelRestarted."""
        if self.life is None:
            raise Unsupported(f"the kernel {self.id} (started elsewhere)", "a restart from here")
        await self._replace("a restart was requested", lambda: KernelRestarted(self.id))

    async def restart_dead(self, how: str) -> None:
        """Start a new process after the old one has died. Open requests end with KernelDied."""
        await self._replace(how, lambda: KernelDied(self.id, how))
        for callback in list(self._on_restart):
            try:
                callback(how)
            except Exception:
                log.exception("a callback for the restart of the kernel %s raised an error", self.id)

    def on_restart(self, callback: Callable[[str], object]) -> None:
        """Call `callback(how)` when a kernel with `autorestart` has died and was restarted; `how` says how it died."""
        self._on_restart.append(callback)

    async def _replace(self, why: str, error: Callable[[], KernelError]) -> None:
        client = self.client
        assert self.life is not None, "only a kernel that was started here is restarted"
        if client.closed:
            raise KernelClosed(self.id)
        client.ready.clear()
        client.dead = None
        client.state = RESTARTING
        client.announce(RESTARTING, why)
        self.router.fail_all(error)
        try:
            await self.life.restart()
        except BaseException:
            client.dead = "its restart failed"
            client.ready.set()
            raise
        await client.greet()
        self._restarts += 1

    async def shutdown(self, *, now: bool = False) -> None:
        """End the kernel, also one that was started elsewhere; with `now`, kill it. This also closes the client."""
        if self.client.closed:
            return
        if self.life is None and self.client.dead is None:
            await self.ask("shutdown_request", {"restart": False}, socket=CONTROL)
        await self._close(lambda: KernelDied(self.id, "it was shut down"), ends=self.life is not None, now=now)

    async def aclose(self) -> None:
        """Disconnect. A kernel that was started here is ended; one that was attached to keeps running."""
        ends = self.life is not None and self.life.ends_with_client
        await self._close(lambda: KernelError(f"the client of kernel {self.id} was closed", self.id), ends=ends)

    async def _close(self, error: Callable[[], KernelError], *, ends: bool, now: bool = False) -> None:
        client = self.client
        if client.closed:
            return
        client.announce(DEAD, "it was shut down" if ends else "the client that shared it was closed")
        client.closed = True
        self.router.fail_all(error)
        await client.stop()
        try:
            if ends and self.life is not None:
                await self.life.shutdown(now)
        finally:
            for leave in self._on_close:
                await leave()
            await client.aclose()
            client.state = DEAD if ends else "closed"

    def on_close(self, leave: Callable[[], Awaitable[None]]) -> None:
        self._on_close.append(leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
