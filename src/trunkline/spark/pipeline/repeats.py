"""Which messages are left out because their id came before.

The rule depends on the messages alone, and not on which of them a run takes in together: in the order of their numbers,
a message is left out if one that was kept has its id, and the hours of the two are at most the horizon apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Suspect(NamedTuple):
    """A message whose id occurs more than once."""

    seq: int
    id: str
    at: int
    """The hour in which it lies, since 1970."""
    is_new: bool
    """Otherwise it was taken in before, and is kept."""


def left_out(suspects: Iterable[Suspect], reach: int) -> list[int]:
    """The numbers of new messages that are to be left out, in order. Hours up to `reach` apart are near."""
    kept: dict[str, set[int]] = {}
    found = []
    for each in sorted(suspects):
        hours = kept.setdefault(each.id, set())
        if each.is_new and any(near in hours for near in range(each.at - reach, each.at + reach + 1)):
            found.append(each.seq)
        else:
            hours.add(each.at)
    return found
