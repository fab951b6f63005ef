"""Counts in texts: `1 message`, `2 messages`."""

from __future__ import annotations


def counted(number: int, what: str, many: str | None = None) -> str:
    """`many` is the plural, if it is not `what` with an s."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"
