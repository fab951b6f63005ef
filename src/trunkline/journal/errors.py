"""Errors of opening a journal. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from trunkline.errors import JournalError


class JournalLocked(JournalError):
    retryable = True

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"Another process (pid {pid})" if pid else "Another process"
        super().__init__(f"{who} is writing to the journal {path}. Reading does not need the lock")
        self.path = path
        self.pid = pid


class JournalUnusable(JournalError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the journal {path} cannot be used: {why}")
        self.path = path
        self.why = why
