"""Messages without checks, and their numbers: for code that has made or checked every field itself.

A message is immutable for all others. Its number is set in place, here only, by the one who holds it alone.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count, repeat
from typing import Any

from msgspec.structs import force_setattr

from trunkline.message import Message, Unchecked

draft: Any = Unchecked
seal = force_setattr
"""`message = draft(…)` and `seal(message, "__class__", Message)` are what `unchecked` does, without a call for it."""
numbered = Message
"""By position, as `unchecked`: a message that is built with its number is not checked."""


def plain(message_id: str, topic: str, payload: bytes, now_ns: int, sender: str, content_type: str) -> Message:
    """As `unchecked`, without a number and any field beyond these."""
    message: Any = Unchecked(message_id, topic, payload, now_ns, 0, sender, content_type)
    force_setattr(message, "__class__", Message)
    return message  # type: ignore[no-any-return]  # it has become one


def unchecked(*fields: Any) -> Message:
    """A message of these fields, by position, as they are."""
    message: Any = Unchecked(*fields)
    # A subclass that adds checks and no field: the class is all that tells them apart.
    force_setattr(message, "__class__", Message)
    return message  # type: ignore[no-any-return]  # it has become one


def unchecked_many(*columns: Iterable[Any]) -> list[Message]:
    """As `unchecked`, from columns."""
    messages: list[Any] = list(map(Unchecked, *columns))
    deque(map(force_setattr, messages, repeat("__class__"), repeat(Message)), 0)
    return messages


def traced(message: Message, trace: str) -> Message:
    """A copy with this `traceparent`."""
    copied = copy.copy(message)
    force_setattr(copied, "trace", trace)
    return copied


def number(message: Message, seq: int) -> None:
    """Give a message its number; 0 takes it away."""
    force_setattr(message, "seq", seq)


def number_all(messages: Iterable[Message], first: int) -> None:
    """Give messages consecutive numbers."""
    deque(map(force_setattr, messages, repeat("seq"), count(first)), 0)


def take_numbers(messages: Iterable[Message]) -> None:
    """These were offered to nobody: without a number, nobody's range of delivered messages covers them."""
    deque(map(force_setattr, messages, repeat("seq"), repeat(0)), 0)


def without_numbers(messages: Sequence[Message]) -> list[Message]:
    """Copies that have no number, for one who numbers them in place."""
    copies = list(map(copy.copy, messages))
    take_numbers(copies)
    return copies
