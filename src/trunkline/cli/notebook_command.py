"""Running a notebook from the command line: the kernel is started first, and is always shut down."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.cli import TERMINATION, show
from trunkline.errors import UsageError
from trunkline.jupyter.errors import KernelError
from trunkline.jupyter.notebook import NotebookRun, read_notebook, run_notebook, write_notebook
from trunkline.jupyter.start import start_kernel

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus
    from trunkline.jupyter.notebook_options import NotebookOptions


class NotebookCommand:
    def __init__(
        self, notebook: Path, target: Path, kernel: str | None, options: NotebookOptions, hub: str | None
    ) -> None:
        self._path = notebook
        self._target = target
        self._kernel = _kernel_of(notebook) if kernel is None else kernel
        self._options = options
        self._hub = hub
        self._book: Any = None

    def run(self) -> NotebookRun:
        """Run the notebook. In any case, the kernel is ended and the outputs so far are written."""
        _leave_out_grammars()
        try:
            done = _run(self._work())
        except (KernelError, KeyboardInterrupt):
            if self._book is not None:
                self._write()
                show.notice(f"the outputs so far are in {self._target}")
            raise
        self._write()
        return done

    def _write(self) -> None:
        write_notebook(self._book, self._target)

    async def _work(self) -> NotebookRun:
        reading: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def read() -> None:
            # Usually this has finished while the kernel was starting.
            if not reading.done():
                reading.set_result(asyncio.ensure_future(asyncio.to_thread(read_notebook, self._path)))

        cwd = self._path.resolve().parent
        async with (
            self._bus() as bus,
            start_kernel(self._kernel, bus=bus, cwd=cwd, on_launch=read) as kernel,
        ):
            self._book = await (await reading)
            try:
                with show.progress(self._path.name) as advance:
                    return await run_notebook(
                        kernel, self._book, progress=lambda at: advance(at.done, at.total), **self._options
                    )
            except asyncio.CancelledError:
                # There may be little time after a signal: write the outputs first, then kill the kernel.
                self._write()
                await kernel.shutdown(now=True)
                raise

    def _bus(self) -> AbstractAsyncContextManager[Bus | None]:
        if self._hub is None:
            return nullcontext()
        from trunkline.connect import connect

        return connect(self._hub, name="trunkline kernel run")


def _kernel_of(path: Path) -> str:
    """The kernel that a notebook names. The whole notebook is read later, while the kernel starts."""
    try:
        found = json.loads(path.read_bytes())
        named = found.get("metadata", {}).get("kernelspec", {}).get("name")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{path} is not a notebook: {error}") from error
    return str(named or "python3")


def _run(work: Any) -> NotebookRun:
    """Run a coroutine to its end. SIGTERM cancels it, as Ctrl-C does; its cleanup finishes before the process ends."""

    async def main() -> NotebookRun:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            # Only the first signal: supervisors may send it again while the outputs are being written.
            TERMINATION.cancel = lambda: None
            loop.call_soon_threadsafe(task.cancel)

        TERMINATION.cancel = cancel
        try:
            done: NotebookRun = await work
        finally:
            TERMINATION.cancel = None
        return done

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _leave_out_grammars() -> None:
    """Hide the package `rfc3987_syntax`, because importing it costs 1.5 s.

    nbformat imports jsonschema, which uses this package, if installed, to check formats of addresses. The schema of a
    notebook has no such formats. The value None in `sys.modules` makes Python treat a package as not installed.
    """
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rfc3987_syntax", None)
