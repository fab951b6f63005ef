"""Options to start the process of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypedDict


class LaunchOptions(TypedDict, total=False):
    """The options for starting a kernel. All are optional."""

    cwd: str | Path | None
    env: dict[str, str] | None
    """Added to the environment of this process."""
    transport: Literal["tcp", "ipc"] | None
    """`ipc`: unix sockets, no ports; the default for ipykernel. `tcp`: the default for all others."""
    arguments: Sequence[str]
    """Additional arguments for the command line of the kernel."""
    keep_history: bool
    """Whether IPython writes executed code to the user's history file; by default it is kept in memory."""
    on_launch: Callable[[], object]
    """Called after the process was started and before it answers, to use the waiting time."""
    autorestart: bool
    """Start a new process when the old one has ended by itself: see `Kernel.on_restart`, `KernelSettings.restarts`."""
