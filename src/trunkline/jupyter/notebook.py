"""Run a notebook in a kernel, cell by cell, and put what came of each into it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from trunkline.errors import MissingExtra, UsageError
from trunkline.jupyter.errors import KernelError
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.result import Result
from trunkline.jupyter.widgets import WidgetStates

try:
    import nbformat
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("jupyter", "notebooks") from error

RAISES = "raises-exception"
"""The tag of a cell that may fail."""
SKIP = "skip-execution"


class NotebookProgress(msgspec.Struct, frozen=True):
    """How far it is: `done` of `total` cells that have code; `cell` is the place in the notebook of the last one."""

    done: int
    total: int
    cell: int


class NotebookRun(msgspec.Struct, frozen=True):
    """What came of a notebook: a result for each cell that was executed, by its place."""

    results: dict[int, Result]
    skipped: int
    """Cells with code that were not executed, because one before them failed."""
    failed: int | None
    """The place of the cell that ended it; None if all went well."""

    @property
    def ok(self) -> bool:
        return self.failed is None


def read_notebook(path: str | Path) -> Any:
    """A notebook in the form of version 4, whichever it has."""
    try:
        return nbformat.read(str(path), as_version=4)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        # nbformat raises what it likes for what is no notebook.
        raise UsageError(f"{path} is no notebook: {error}") from error


def write_notebook(notebook: Any, path: str | Path) -> None:
    """Written beside it and renamed: whoever looks sees the old one, or the whole new one."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.part")
    try:
        nbformat.write(notebook, str(beside))
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


async def run_notebook(
    kernel: Kernel,
    notebook: Any,
    *,
    allow_errors: bool = False,
    timeout_s: float | None = None,
    progress: Callable[[NotebookProgress], object] | None = None,
) -> NotebookRun:
    """Execute all cells that have code, in order; the notebook has their outputs then.

    A cell that fails ends it, unless `allow_errors`, or the tag `raises-exception`, says otherwise; so does one that
    takes longer than `timeout_s` (by default no time is too long), which is interrupted. The next cell is sent as soon
    as the kernel has replied: outputs find their cells by themselves, also late ones. Raises KernelDied if it dies; the
    notebook has what came until then.
    """
    cells = [(place, cell) for place, cell in enumerate(notebook.cells) if _has_code(cell)]
    for _, cell in cells:
        cell.outputs = []
        cell.execution_count = None
    executions: dict[int, Execution] = {}
    failed: int | None = None
    with WidgetStates(kernel) as widgets:
        try:
            for done, (place, cell) in enumerate(cells, 1):
                may_fail = allow_errors or RAISES in _tags(cell)
                execution = executions[place] = await kernel.execute(
                    cell.source, stop_on_error=not may_fail, timeout_s=math.inf if timeout_s is None else timeout_s
                )
                reply = await execution.replied()
                if reply is None:
                    await _stop(kernel, execution)
                if reply is None or (reply.content.get("status") != "ok" and not may_fail):
                    failed = place
                if progress is not None:
                    progress(NotebookProgress(done, len(cells), place))
                if failed is not None:
                    break
            # The reply may come before the last outputs do.
            await asyncio.gather(*(execution.result() for execution in executions.values()), return_exceptions=True)
        finally:
            results = _fill(notebook, executions)
    widgets.put_into(notebook.metadata)
    _describe(notebook, kernel)
    for execution in executions.values():
        if isinstance(execution.failure, KernelError):
            raise execution.failure
        execution.close()
    return NotebookRun(results, len(cells) - len(executions), failed)


async def _stop(kernel: Kernel, execution: Execution) -> None:
    """It took too long: its kernel is interrupted, and has a moment to say so."""
    await kernel.interrupt()
    execution.extend(kernel.settings.shutdown_timeout_s)
    await execution.result()


def _fill(notebook: Any, executions: dict[int, Execution]) -> dict[int, Result]:
    results = {}
    for place, execution in executions.items():
        result = results[place] = execution.partial()
        cell = notebook.cells[place]
        cell.outputs = [nbformat.from_dict(output) for output in result.outputs]
        cell.execution_count = result.execution_count
        cell.metadata["execution"] = dict(execution.dates)
    return results


def _describe(notebook: Any, kernel: Kernel) -> None:
    """Which language it is in, as the kernel says."""
    if (language := kernel.info.get("language_info")) is not None:
        notebook.metadata["language_info"] = nbformat.from_dict(dict(language))


def _has_code(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip()) and SKIP not in _tags(cell)


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", ()))
