"""Options to run a notebook. The names are those of nbclient."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol, TypedDict

RAISES = "raises-exception"
"""The tag of a cell that may fail."""
SKIP = "skip-execution"
"""The tag of a cell that is not executed."""

Cell = Any
"""A cell as nbformat has it."""


class NotebookHook(Protocol):
    """Called with `notebook`. It may be a coroutine function."""

    def __call__(self, *, notebook: Any) -> Awaitable[object] | object: ...


class CellHook(Protocol):
    """Called with `cell` and `cell_index`, its index in the notebook. It may be a coroutine function."""

    def __call__(self, *, cell: Cell, cell_index: int) -> Awaitable[object] | object: ...


class ReplyHook(Protocol):
    """Called with `cell`, `cell_index` and `execute_reply`, the kernel's reply as a whole: `["content"]["status"]`."""

    def __call__(
        self, *, cell: Cell, cell_index: int, execute_reply: Mapping[str, Any]
    ) -> Awaitable[object] | object: ...


class NotebookOptions(TypedDict, total=False):
    """The options for running a notebook. All are optional."""

    allow_errors: bool
    """Continue after a cell that fails."""
    allow_error_names: Collection[str]
    """Continue after errors with these names, such as `ZeroDivisionError`."""
    force_raise_errors: bool
    """Stop at every error, whatever the options and the tags of the cell allow."""
    timeout_s: float | Callable[[Cell], float | None] | None
    """The time limit of a cell, or a function that gives it for a cell; None, the default: no limit."""
    interrupt_on_timeout: bool
    """Treat a cell that was interrupted after its time limit like any failed cell. Otherwise it ends the run."""
    error_on_timeout: Mapping[str, Any]
    """With `interrupt_on_timeout`: the error of such a cell, as `ename`, `evalue` and `traceback`."""
    skip_cells_with_tag: str
    """`skip-execution` by default."""
    parameters: Mapping[str, Any]
    """Values for the variables of the cell with the tag `parameters`, set in a cell after it, as papermill does."""
    coalesce_streams: bool
    """Merge all stdout of a cell into one output, and all stderr into another, also across displays.
    """
    record_timing: bool
    """Store the execution times in the metadata of a cell; True by default."""
    store_widget_state: bool
    """Keep the state of widgets in the metadata of the notebook; True by default."""
    store_history: bool
    """Whether the kernel adds the cells to its history; True by default."""
    on_notebook_start: NotebookHook
    on_notebook_complete: NotebookHook
    """Called after the run, also after an error."""
    on_notebook_error: NotebookHook
    """Called when an error of the kernel ends the run."""
    on_cell_start: CellHook
    """Called before every cell, including cells without code."""
    on_cell_execute: CellHook
    """Called before a cell is sent to the kernel."""
    on_cell_complete: CellHook
    """Called after a cell was sent to the kernel."""
    on_cell_executed: ReplyHook
    """Called when the outputs of a cell are complete and stored in the cell."""
    on_cell_error: ReplyHook
    """Called after `on_cell_executed` if the cell failed."""
