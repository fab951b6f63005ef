"""The blocking face: kernels for threads, scripts and notebooks. The client lives in an event loop of its own thread.

Every method is safe from many threads at once and waits for the result of its async twin.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from trunkline.bus.blocking import BlockingBus, BlockingStream, LoopThread, as_coroutine
from trunkline.delivery.options import DeliveryOptions
from trunkline.delivery.requests import Orphan
from trunkline.jupyter import notebook as notebooks
from trunkline.jupyter import start
from trunkline.jupyter.awaitable_context import AwaitableContext
from trunkline.jupyter.comm import Comm
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.kernel import Kernel, KernelStats
from trunkline.jupyter.notebook import NotebookProgress, NotebookRun
from trunkline.jupyter.result import Result
from trunkline.topic import EVERYTHING

T = TypeVar("T")


class BlockingExecution:
    """One request, to be read and waited for from any thread."""

    def __init__(self, thread: LoopThread, execution: Execution) -> None:
        self._thread = thread
        self._execution = execution
        self.id = execution.id

    def result(self, timeout_s: float | None = None) -> Result:
        """What came of it, when it is complete; or what has come after `timeout_s`."""
        return self._thread.call(self._execution.result(timeout_s))

    def partial(self) -> Result:
        """What has come of it so far."""
        return self._thread.call(as_coroutine(self._execution.partial))

    def channel(self, name: str) -> BlockingStream:
        return BlockingStream(self._thread, self._thread.call(as_coroutine(lambda: self._execution.channel(name))))

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
        self._thread.call(as_coroutine(self._execution.close))

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
        self.messages = BlockingStream(thread, comm.messages)

    def send(self, data: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        self._thread.call(self._comm.send(data, buffers))

    def close(self, data: Mapping[str, Any] | None = None) -> None:
        self._thread.call(self._comm.close(data))


class BlockingKernel:
    def __init__(self, opening: Callable[[], AwaitableContext[Kernel]], bus: BlockingBus | None = None) -> None:
        self._own = None if bus is not None else LoopThread("kernel")
        self._thread = bus.thread if bus is not None else self._own
        assert self._thread is not None
        try:
            self._kernel: Kernel = self._thread.call(_opened(opening))
        except BaseException:
            self._stop()
            raise
        self._closed = False
        self.id = self._kernel.id
        self.info = self._kernel.info
        self.connection_file = self._kernel.connection_file

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.call(work)

    def execute(self, code: str, **options: Any) -> BlockingExecution:
        """Have code executed; the options are those of `Kernel.execute`."""
        assert self._thread is not None
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

    def comm(self, comm_id: str) -> BlockingComm | None:
        """The comm of this id, if it is open."""
        assert self._thread is not None
        found = self._call(as_coroutine(lambda: self._kernel.comm(comm_id)))
        return None if found is None else BlockingComm(self._thread, found)

    def open_comm(self, target_name: str, data: Mapping[str, Any] | None = None) -> BlockingComm:
        """Open a comm to a target of the kernel."""
        assert self._thread is not None
        return BlockingComm(self._thread, self._call(self._kernel.open_comm(target_name, data)))

    def resume(self, request_id: str, timeout_s: float | None = None) -> BlockingExecution:
        assert self._thread is not None
        return BlockingExecution(
            self._thread, self._call(as_coroutine(lambda: self._kernel.resume(request_id, timeout_s)))
        )

    def run_notebook(
        self,
        notebook: Any,
        *,
        allow_errors: bool = False,
        timeout_s: float | None = None,
        progress: Callable[[NotebookProgress], object] | None = None,
    ) -> NotebookRun:
        """Execute all cells of a notebook; it has their outputs then."""
        return self._call(
            notebooks.run_notebook(
                self._kernel, notebook, allow_errors=allow_errors, timeout_s=timeout_s, progress=progress
            )
        )

    def subscribe(self, pattern: str = EVERYTHING, **options: Unpack[DeliveryOptions]) -> BlockingStream:
        """Everything the kernel says, as `Kernel.subscribe`; to be used as a block, or closed."""
        assert self._thread is not None
        opening = self._call(as_coroutine(lambda: self._kernel.subscribe(pattern, **options)))
        return BlockingStream(self._thread, self._call(opening.open()))

    def stats(self) -> KernelStats:
        return self._call(as_coroutine(self._kernel.stats))

    def orphans(self) -> list[Orphan]:
        return self._call(as_coroutine(lambda: list(self._kernel.orphans)))

    def interrupt(self) -> None:
        self._call(self._kernel.interrupt())

    def restart(self) -> None:
        self._call(self._kernel.restart())

    def shutdown(self, *, now: bool = False) -> None:
        self._call(self._kernel.shutdown(now=now))
        self.close()

    def close(self) -> None:
        """Leave; a kernel that was started here ends. Closing twice is fine."""
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


def start_kernel_blocking(name: str = "python3", *, bus: BlockingBus | None = None, **options: Any) -> BlockingKernel:
    """`with start_kernel_blocking() as kernel`: as `start_kernel`, without an event loop of yours."""
    inner = None if bus is None else bus.bus
    return BlockingKernel(lambda: start.start_kernel(name, bus=inner, **options), bus)


def attach_blocking(
    connection_file: str | Path | None = None, *, bus: BlockingBus | None = None, **options: Any
) -> BlockingKernel:
    """As `attach`, without an event loop of yours."""
    inner = None if bus is None else bus.bus
    return BlockingKernel(lambda: start.attach(connection_file, bus=inner, **options), bus)


def join_blocking(bus: BlockingBus, kernel_id: str, **options: Any) -> BlockingKernel:
    """As `join`, without an event loop of yours."""
    return BlockingKernel(lambda: start.join(bus.bus, kernel_id, **options), bus)


async def _opened(opening: Callable[[], AwaitableContext[T]]) -> T:
    return await opening()
