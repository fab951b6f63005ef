"""Dead letters grouped by cause: one bug is one row. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import msgspec

from trunkline.brokers.store import KeptDeadLetter
from trunkline.delivery.dead_letters import DeadLetter

_VALUES = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+|'[^']*'|\"[^\"]*\"")
"""The parts of a reason that differ from message to message: addresses, ids, numbers, quoted values."""


class LetterGroup(msgspec.Struct, frozen=True):
    """Dead letters of one subscriber with the same cause."""

    key: str
    subscriber: str
    cause: str
    error_type: str
    reason: str
    """The reason of the newest dead letter."""
    topics: tuple[str, ...]
    first_ns: int
    last_ns: int
    letters: tuple[KeptDeadLetter, ...]
    """The newest first, without payloads and tracebacks."""

    @property
    def count(self) -> int:
        return len(self.letters)

    @property
    def returns(self) -> int:
        """The number of dead letters that the hub can redeliver."""
        return sum(each.returns for each in self.letters)


def group_letters(letters: Iterable[KeptDeadLetter]) -> list[LetterGroup]:
    """The groups, those with the newest dead letter first."""
    found: dict[str, list[KeptDeadLetter]] = {}
    for each in letters:
        found.setdefault(key_of_letter(each.letter), []).append(each)
    groups = [_group(key, several) for key, several in found.items()]
    return sorted(groups, key=lambda group: -group.last_ns)


def key_of_letter(letter: DeadLetter) -> str:
    """A key that is the same for all dead letters of one bug. It is stable, so it can be part of an address."""
    reason = _VALUES.sub("…", letter.reason)
    text = "\0".join((letter.subscriber, letter.cause.value, letter.error_type, reason))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _group(key: str, letters: list[KeptDeadLetter]) -> LetterGroup:
    letters = sorted(letters, key=lambda each: -each.letter.at_ns)
    newest = letters[0].letter
    return LetterGroup(
        key=key,
        subscriber=newest.subscriber,
        cause=newest.cause.value,
        error_type=newest.error_type,
        reason=newest.reason,
        topics=tuple(sorted({each.letter.message.topic for each in letters})),
        first_ns=letters[-1].letter.at_ns,
        last_ns=newest.at_ns,
        letters=tuple(letters),
    )
