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
    """All optional."""

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
    """Merge all output of a cell on stdout into one, and that on stderr, even if it displays something in between."""
    record_timing: bool
    """Store the execution times in the metadata of a cell; True by default."""
    store_widget_state: bool
    """Keep the state of widgets in the metadata of the notebook; True by default."""
    store_history: bool
    """Whether the kernel adds the cells to its history; True by default."""
    on_notebook_start: NotebookHook
    on_notebook_complete: NotebookHook
    """Also after an error."""
    on_notebook_error: NotebookHook
    """When the run is ended by an error of the kernel."""
    on_cell_start: CellHook
    """Before every cell, whether it has code or not."""
    on_cell_execute: CellHook
    """Before a cell is sent to the kernel."""
    on_cell_complete: CellHook
    """After a cell was sent to the kernel."""
    on_cell_executed: ReplyHook
    """When its outputs are complete and in the cell."""
    on_cell_error: ReplyHook
    """After `on_cell_executed`, if it failed."""
