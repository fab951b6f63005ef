"""Runs a notebook in a kernel, cell by cell, and stores the outputs in it."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Unpack

import msgspec
from msgspec import to_builtins

from trunkline.errors import UsageError
from trunkline.jupyter.errors import KernelError
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.notebook_format import nbformat
from trunkline.jupyter.notebook_options import RAISES, SKIP, Cell, NotebookOptions
from trunkline.jupyter.parameters import inject
from trunkline.jupyter.result import Result
from trunkline.jupyter.terminal_text import coalesced, on_screen
from trunkline.jupyter.widgets import WidgetStates
from trunkline.jupyter.wire import KernelMessage

LAST_OUTPUTS_S: Final = 0.5
"""How long a cancelled run waits for outputs that have not arrived yet."""


class NotebookProgress(msgspec.Struct, frozen=True):
    """The progress: `done` of `total` code cells; `cell` is the index of the last one."""

    done: int
    total: int
    cell: int


class NotebookRun(msgspec.Struct, frozen=True):
    """The result of a notebook: a result for each executed cell, by its index."""

    results: dict[int, Result]
    skipped: int
    """Cells with code that were not executed, because one before them failed."""
    failed: int | None
    """The index of the cell that ended the run; None if all cells succeeded."""

    @property
    def ok(self) -> bool:
        return self.failed is None


def read_notebook(path: str | Path) -> Any:
    """Read a notebook of any version, and convert it to version 4."""
    try:
        return nbformat().read(str(path), as_version=4)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        # nbformat can raise any error for a file that is not a notebook.
        raise UsageError(f"{path} is not a notebook: {error}") from error


def write_notebook(notebook: Any, path: str | Path) -> None:
    """Write a notebook to a new file and rename it: readers see the old file, or the complete new one."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.part")
    try:
        nbformat().write(notebook, str(beside))
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


async def run_notebook(
    kernel: Kernel,
    notebook: Any,
    *,
    progress: Callable[[NotebookProgress], object] | None = None,
    **options: Unpack[NotebookOptions],
) -> NotebookRun:
    """Execute all code cells, in order, and write their outputs into the notebook.

    A cell that fails ends the run, unless `allow_errors`, `allow_error_names` or the tag `raises-exception` allows it.
    A cell that takes longer than `timeout_s` (by default there is no limit) is interrupted, and ends the run too. The
    next cell is sent as soon as the kernel has replied; outputs that arrive later are still stored in the right cell.
    Raises KernelDied if the kernel dies; the notebook then has the outputs so far.
    """
    return await NotebookRunner(kernel, notebook, options, progress).run()


class NotebookRunner:
    """One run of one notebook."""

    def __init__(
        self,
        kernel: Kernel,
        notebook: Any,
        options: NotebookOptions,
        progress: Callable[[NotebookProgress], object] | None,
    ) -> None:
        if unknown := set(options) - set(NotebookOptions.__annotations__):
            known = ", ".join(sorted(NotebookOptions.__annotations__))
            raise UsageError(f"a notebook has no option {', '.join(sorted(unknown))}: use one of {known}")
        self._kernel = kernel
        self._notebook = notebook
        self._options = options
        self._progress = progress
        self._executions: dict[int, Execution] = {}
        self._failed: int | None = None
        self._in_step = any(name in options for name in ("on_cell_executed", "on_cell_error"))
        """Whether a cell must be complete before the next is sent."""

    async def run(self) -> NotebookRun:
        self._prepare()
        await self._call("on_notebook_start", notebook=self._notebook)
        try:
            return await self._run()
        except KernelError:
            await self._call("on_notebook_error", notebook=self._notebook)
            raise
        finally:
            await self._call("on_notebook_complete", notebook=self._notebook)

    def _prepare(self) -> None:
        notebook = self._notebook
        if parameters := self._options.get("parameters"):
            language = self._kernel.info.get("language_info") or {}
            inject(notebook, parameters, str(language.get("name", "")))
        for cell in notebook.cells:
            if self._has_code(cell):
                cell.outputs = []
                cell.execution_count = None

    async def _run(self) -> NotebookRun:
        notebook = self._notebook
        total = sum(map(self._has_code, notebook.cells))
        with WidgetStates(self._kernel) as widgets:
            try:
                for place, cell in enumerate(notebook.cells):
                    await self._call("on_cell_start", cell=cell, cell_index=place)
                    if not self._has_code(cell):
                        continue
                    await self._execute(place, cell, widgets)
                    if self._progress is not None:
                        self._progress(NotebookProgress(len(self._executions), total, place))
                    if self._failed is not None:
                        break
                # The reply may come before the last outputs do.
                waiting = (execution.result() for execution in self._executions.values())
                await asyncio.gather(*waiting, return_exceptions=True)
                await widgets.settle()
            except asyncio.CancelledError:
                await self._take_last_outputs()
                raise
            finally:
                results = {place: self._fill(place) for place in self._executions}
        if self._options.get("store_widget_state", True):
            widgets.put_into(notebook.metadata)
        if (language := self._kernel.info.get("language_info")) is not None:
            notebook.metadata["language_info"] = nbformat().from_dict(dict(language))
        for execution in self._executions.values():
            if isinstance(execution.failure, KernelError):
                raise execution.failure
            execution.close()
        return NotebookRun(results, total - len(self._executions), self._failed)

    async def _take_last_outputs(self) -> None:
        """Take the last outputs of cells that the kernel has replied to.

        They arrive on another socket, a moment later.
        """
        waiting = [each.result() for each in self._executions.values() if each.reply is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUTS_S):
                await asyncio.gather(*waiting, return_exceptions=True)

    async def _execute(self, place: int, cell: Cell, widgets: WidgetStates) -> None:
        """Execute one cell.

        Returns when the kernel has replied, or, if the outputs are needed, when they are complete.
        """
        await self._call("on_cell_execute", cell=cell, cell_index=place)
        limit_s = self._limit_s(cell)
        execution = self._executions[place] = await self._kernel.execute(
            cell.source,
            stop_on_error=not self._may_fail(cell, None),
            store_history=self._options.get("store_history", True),
            timeout_s=limit_s,
        )
        await self._call("on_cell_complete", cell=cell, cell_index=place)
        reply = as_nbclient_has_it(await execution.replied())
        # If the reply was lost, the kernel has finished the cell.
        in_time = reply is not None or execution.lost
        if not in_time:
            await self._stop(execution)
            reply = self._reply_instead(execution) or as_nbclient_has_it(execution.reply)
        elif self._in_step or widgets.capture:
            await execution.result()
            await widgets.settle()
        content: Mapping[str, Any] = {} if reply is None else reply["content"]
        failed = content.get("status") != "ok"
        if self._in_step and reply is not None:
            self._fill(place)
            await self._call("on_cell_executed", cell=cell, cell_index=place, execute_reply=reply)
            if failed:
                await self._call("on_cell_error", cell=cell, cell_index=place, execute_reply=reply)
        if failed and not self._may_fail(cell, str(content.get("ename", ""))):
            self._failed = place
        if not in_time and (reply is None or not self._options.get("interrupt_on_timeout")):
            self._failed = place

    async def _stop(self, execution: Execution) -> None:
        """Interrupt the kernel because the cell took too long, and wait briefly for its reply."""
        await self._kernel.interrupt()
        execution.extend(self._kernel.settings.shutdown_timeout_s)
        await execution.result()

    def _reply_instead(self, execution: Execution) -> dict[str, Any] | None:
        """The reply to use for an interrupted cell, if the options define one."""
        error = self._options.get("error_on_timeout")
        if error is None or not self._options.get("interrupt_on_timeout"):
            return None
        return {"parent_header": {"msg_id": execution.id}, "content": {**error, "status": "error"}}

    def _may_fail(self, cell: Cell, name: str | None) -> bool:
        options = self._options
        if options.get("force_raise_errors"):
            return False
        # The name of its error is not known yet, so the kernel must not abort later cells.
        names = options.get("allow_error_names", ())
        return (
            bool(options.get("allow_errors"))
            or RAISES in _tags(cell)
            or (bool(names) if name is None else name in names)
        )

    def _limit_s(self, cell: Cell) -> float:
        given = self._options.get("timeout_s")
        limit_s = given(cell) if callable(given) else given
        return math.inf if limit_s is None or limit_s <= 0 else limit_s

    def _fill(self, place: int) -> Result:
        execution, cell = self._executions[place], self._notebook.cells[place]
        result = execution.partial()
        outputs = [{**each, "text": on_screen(each["text"])} if "text" in each else each for each in result.outputs]
        if self._options.get("coalesce_streams"):
            outputs = coalesced(outputs)
        cell.outputs = [nbformat().from_dict(output) for output in outputs]
        cell.execution_count = result.execution_count
        if self._options.get("record_timing", True):
            cell.metadata["execution"] = dict(execution.dates)
        return result

    def _has_code(self, cell: Cell) -> bool:
        skip = self._options.get("skip_cells_with_tag", SKIP)
        return cell.cell_type == "code" and bool(cell.source.strip()) and skip not in _tags(cell)

    async def _call(self, hook: str, **words: Any) -> None:
        given: Any = self._options.get(hook)
        if given is not None and inspect.isawaitable(called := given(**words)):
            await called


def as_nbclient_has_it(reply: KernelMessage | None) -> dict[str, Any] | None:
    """A reply of the kernel in the format of nbclient's hooks: the whole message."""
    if reply is None:
        return None
    header, parent = to_builtins(reply.header), to_builtins(reply.parent)
    return {
        "header": header,
        "msg_id": reply.header.msg_id,
        "msg_type": reply.msg_type,
        "parent_header": parent,
        "metadata": dict(reply.metadata),
        "content": dict(reply.content),
        "buffers": list(reply.buffers),
    }


def _tags(cell: Cell) -> list[str]:
    return list(cell.metadata.get("tags", ()))
