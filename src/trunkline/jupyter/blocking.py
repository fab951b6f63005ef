"""The blocking API: kernels for threads, scripts and notebooks. The client runs in an event loop in its own thread.

All methods are thread-safe. Each waits for the result of the async method of the same name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from trunkline.bus.blocking import BlockingBus, BlockingStream, LoopThread, as_coroutine
from trunkline.delivery.options import DeliveryOptions
from trunkline.delivery.requests import Orphan
from trunkline.jupyter import notebook as notebooks
from trunkline.jupyter import start
from trunkline.jupyter.awaitable_context import AwaitableContext
from trunkline.jupyter.comm import Comm
from trunkline.jupyter.errors import KernelError
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.kernel import Kernel, KernelStats
from trunkline.jupyter.notebook import NotebookProgress, NotebookRun
from trunkline.jupyter.notebook_options import NotebookOptions
from trunkline.jupyter.result import Result
from trunkline.jupyter.wire import KernelMessage
from trunkline.topic import EVERYTHING

log = logging.getLogger("trunkline.jupyter")

T = TypeVar("T")


class BlockingExecution:
    """One request, for use from any thread."""

    def __init__(self, thread: LoopThread, execution: Execution) -> None:
        self._thread = thread
        self._execution = execution
        self.id = execution.id
        self.who = execution.who
        self.priority = execution.priority

    def _get(self, read: Callable[[Execution], T]) -> T:
        return self._thread.call(as_coroutine(lambda: read(self._execution)))

    def result(self, timeout_s: float | None = None, *, raise_on_timeout: bool = False) -> Result:
        """The complete result. After `timeout_s`, the partial result, or ExecutionTimeout with `raise_on_timeout`."""
        return self._thread.call(self._execution.result(timeout_s, raise_on_timeout=raise_on_timeout))

    def replied(self, timeout_s: float | None = None) -> KernelMessage | None:
        """The reply, as soon as it arrives; None if it does not arrive in time."""
        return self._thread.call(self._execution.replied(timeout_s))

    def partial(self) -> Result:
        """The result so far."""
        return self._get(lambda execution: execution.partial())

    def extend(self, more_s: float) -> None:
        """Give it more time, from now on."""
        self._get(lambda execution: execution.extend(more_s))

    def wait_for(
        self, channel: str, wanted: str | Callable[[KernelMessage], bool], timeout_s: float | None = None
    ) -> KernelMessage | None:
        """The next message of a channel that matches `wanted`; None if it ended without one."""
        return self._thread.call(self._execution.wait_for(channel, wanted, timeout_s))

    @property
    def code(self) -> str:
        return self._execution.code

    @property
    def complete(self) -> bool:
        return self._execution.complete

    @property
    def lost(self) -> bool:
        return self._execution.lost

    @property
    def subshell_id(self) -> str | None:
        return self._execution.subshell_id

    @property
    def reply(self) -> KernelMessage | None:
        return self._execution.reply

    @property
    def failure(self) -> KernelError | None:
        return self._execution.failure

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that have not arrived yet."""
        return self._get(lambda execution: execution.missing)

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped because its channels were not read."""
        return self._get(lambda execution: execution.dropped)

    @property
    def dates(self) -> dict[str, str]:
        """The times of the kernel's messages, by its own clock."""
        return self._get(lambda execution: dict(execution.dates))

    @property
    def complete_at_s(self) -> float | None:
        return self._get(lambda execution: execution.complete_at_s)

    def channel(self, name: str) -> BlockingStream:
        return BlockingStream(self._thread, self._get(lambda execution: execution.channel(name)))

    @property
    def status(self) -> BlockingStream:
        return self.channel("status")

    @property
    def execution(self) -> BlockingStream:
        return self.channel("execution")

    @property
    def stream(self) -> BlockingStream:
        return self.channel("stream")

    @property
    def display(self) -> BlockingStream:
        return self.channel("display")

    @property
    def comm(self) -> BlockingStream:
        return self.channel("comm")

    @property
    def late(self) -> BlockingStream:
        return self.channel("late")

    def close(self) -> None:
        self._get(lambda execution: execution.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingComm:
    """One comm, from any thread."""

    def __init__(self, thread: LoopThread, comm: Comm) -> None:
        self._thread = thread
        self._comm = comm
        self.id = comm.id
        self.target_name = comm.target_name
        self.data = comm.data
        self.messages = BlockingStream(thread, comm.messages)

    @property
    def closed(self) -> bool:
        return self._comm.closed

    def send(self, data: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        self._thread.call(self._comm.send(data, buffers))

    def close(self, data: Mapping[str, Any] | None = None) -> None:
        self._thread.call(self._comm.close(data))


class BlockingKernel:
    """A kernel, for use from any thread. Callbacks run in their own threads, and may use the kernel."""

    def __init__(self, opening: Callable[[], AwaitableContext[Kernel]], bus: BlockingBus | None = None) -> None:
        self._own = None if bus is not None else LoopThread("kernel")
        thread = bus.thread if bus is not None else self._own
        assert thread is not None
        self._thread: LoopThread = thread
        try:
            self._kernel: Kernel = thread.call(_opened(opening))
        except BaseException:
            self._stop()
            raise
        self._closed = False
        self.id = self._kernel.id
        self.session = self._kernel.session
        self.username = self._kernel.username
        self.settings = self._kernel.settings
        self.connection_file = self._kernel.connection_file

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)

    def _get(self, read: Callable[[Kernel], T]) -> T:
        return self._thread.call(as_coroutine(lambda: read(self._kernel)))

    @property
    def info(self) -> Mapping[str, Any]:
        """The kernel's description of itself: language, version, protocol."""
        return self._kernel.info

    @property
    def state(self) -> str:
        return self._kernel.state

    def execute(self, code: str, **options: Any) -> BlockingExecution:
        """Execute code; the options are those of `Kernel.execute`."""
        return BlockingExecution(self._thread, self._call(_opened(lambda: self._kernel.execute(code, **options))))

    def run(self, code: str, **options: Any) -> Result:
        """Execute, and wait for the result."""
        return self._call(self._kernel.run(code, **options))

    def ask(self, msg_type: str, content: Mapping[str, Any] | None = None, **options: Any) -> Mapping[str, Any]:
        return self._call(self._kernel.ask(msg_type, content, **options))

    def complete(self, code: str, cursor_pos: int | None = None, **options: Any) -> Mapping[str, Any]:
        return self._call(self._kernel.complete(code, cursor_pos, **options))

    def inspect(self, code: str, cursor_pos: int | None = None, **options: Any) -> Mapping[str, Any]:
        return self._call(self._kernel.inspect(code, cursor_pos, **options))

    def history(self, n: int = 100, **options: Any) -> Mapping[str, Any]:
        return self._call(self._kernel.history(n, **options))

    def is_complete(self, code: str, **options: Any) -> Mapping[str, Any]:
        return self._call(self._kernel.is_complete(code, **options))

    def comm_info(self, target_name: str | None = None, **options: Any) -> Mapping[str, Any]:
        return self._call(self._kernel.comm_info(target_name, **options))

    def debug(self, content: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
        return self._call(self._kernel.debug(content, **options))

    def resume(self, request_id: str, timeout_s: float | None = None) -> BlockingExecution:
        return BlockingExecution(self._thread, self._get(lambda kernel: kernel.resume(request_id, timeout_s)))

    @contextmanager
    def subshell(self) -> Iterator[str]:
        """`with kernel.subshell() as subshell_id`: see `Kernel.subshell`."""
        subshell_id = self.create_subshell()
        try:
            yield subshell_id
        finally:
            self.delete_subshell(subshell_id)

    def create_subshell(self) -> str:
        return self._call(self._kernel.create_subshell())

    def delete_subshell(self, subshell_id: str) -> None:
        self._call(self._kernel.delete_subshell(subshell_id))

    def comm(self, comm_id: str) -> BlockingComm | None:
        """The comm of this id, if it is open."""
        found = self._get(lambda kernel: kernel.comm(comm_id))
        return None if found is None else BlockingComm(self._thread, found)

    @property
    def comms(self) -> list[BlockingComm]:
        """All open comms."""
        return [BlockingComm(self._thread, comm) for comm in self._get(lambda kernel: kernel.comms)]

    def open_comm(
        self, target_name: str, data: Mapping[str, Any] | None = None, *, metadata: Mapping[str, Any] | None = None
    ) -> BlockingComm:
        """Open a comm to a target of the kernel."""
        return BlockingComm(self._thread, self._call(self._kernel.open_comm(target_name, data, metadata=metadata)))

    def on_comm(self, target_name: str, callback: Callable[[BlockingComm, KernelMessage], object]) -> None:
        """Call `callback(comm, message)` when the kernel opens a comm to this target."""

        def opened(comm: Comm, message: KernelMessage) -> None:
            _in_thread(callback, BlockingComm(self._thread, comm), message)

        self._get(lambda kernel: kernel.on_comm(target_name, opened))

    def on_restart(self, callback: Callable[[str], object]) -> None:
        """Call `callback(how)` when the kernel has died and runs again."""
        self._get(lambda kernel: kernel.on_restart(lambda how: _in_thread(callback, how)))

    def run_notebook(
        self,
        notebook: Any,
        *,
        progress: Callable[[NotebookProgress], object] | None = None,
        **options: Unpack[NotebookOptions],
    ) -> NotebookRun:
        """Execute all cells of a notebook, and write their outputs into it."""
        return self._call(notebooks.run_notebook(self._kernel, notebook, progress=progress, **options))

    def subscribe(self, pattern: str = EVERYTHING, **options: Unpack[DeliveryOptions]) -> BlockingStream:
        """All messages of the kernel, as `Kernel.subscribe`. Use it with `with`, or close it."""
        opening = self._get(lambda kernel: kernel.subscribe(pattern, **options))
        return BlockingStream(self._thread, self._call(opening.open()))

    def stats(self) -> KernelStats:
        return self._get(lambda kernel: kernel.stats())

    def orphans(self) -> list[Orphan]:
        return self._get(lambda kernel: list(kernel.orphans))

    @property
    def others(self) -> list[BlockingExecution]:
        """Recent executions of other clients of this kernel."""
        return [BlockingExecution(self._thread, other) for other in self._get(lambda kernel: kernel.others)]

    def death(self) -> str:
        """Wait until the kernel has died. Returns how it died."""
        return self._call(self._kernel.death())

    def interrupt(self) -> None:
        self._call(self._kernel.interrupt())

    def restart(self) -> None:
        self._call(self._kernel.restart())

    def shutdown(self, *, now: bool = False) -> None:
        self._call(self._kernel.shutdown(now=now))
        self.close()

    def close(self) -> None:
        """Disconnect; a kernel that was started here is ended. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            try:
                self._call(self._kernel.aclose())
            finally:
                self._stop()

    def _stop(self) -> None:
        if self._own is not None:
            self._own.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_thread(callback: Callable[..., object], *arguments: object) -> None:
    """Run a callback in its own thread: in the thread of the event loop, it could not wait for the kernel."""

    def call() -> None:
        try:
            callback(*arguments)
        except Exception:
            log.exception("a callback of a kernel raised an error")

    threading.Thread(target=call, name="kernel-callback", daemon=True).start()


def start_kernel_blocking(name: str = "python3", *, bus: BlockingBus | None = None, **options: Any) -> BlockingKernel:
    """`with start_kernel_blocking() as kernel`: like `start_kernel`, without an event loop."""
    inner = None if bus is None else bus.bus
    return BlockingKernel(lambda: start.start_kernel(name, bus=inner, **options), bus)


def attach_blocking(
    connection_file: str | Path | None = None, *, bus: BlockingBus | None = None, **options: Any
) -> BlockingKernel:
    """Like `attach`, without an event loop."""
    inner = None if bus is None else bus.bus
    return BlockingKernel(lambda: start.attach(connection_file, bus=inner, **options), bus)


def join_blocking(bus: BlockingBus, kernel_id: str, **options: Any) -> BlockingKernel:
    """Like `join`, without an event loop."""
    return BlockingKernel(lambda: start.join(bus.bus, kernel_id, **options), bus)


async def _opened(opening: Callable[[], AwaitableContext[T]]) -> T:
    return await opening()
