"""Errors of opening a journal. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from trunkline.errors import JournalError


class JournalLocked(JournalError):
    retryable = True

    """`hub` is the address of the hub that writes to the journal, if it is one."""

    def __init__(self, path: str, pid: int | None, hub: str = "") -> None:
        process = f"pid {pid}" if pid else "pid unknown"
        who = f"The hub at {hub} ({process})" if hub else f"Another process ({process})"
        step = f': connect to it with connect("{hub}")' if hub else ""
        super().__init__(f"{who} is writing to the journal {path}{step}. Reading does not need the lock")
        self.path = path
        self.pid = pid
        self.hub = hub


class JournalUnusable(JournalError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the journal {path} cannot be used: {why}")
        self.path = path
        self.why = why


class WrongJournal(JournalError):
    """`expected` is the identity of the journal that a position belongs to, `found` that of the journal at `path`."""

    def __init__(self, path: str, expected: str, found: str | None) -> None:
        super().__init__(
            f"the journal {path} is {found or 'without an identity'}, but the position belongs to journal {expected}:"
            " restore that journal, or start with an empty checkpoint or warehouse"
        )
        self.path = path
        self.expected = expected
        self.found = found
