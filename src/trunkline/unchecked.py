"""Builds messages without checks and sets their numbers, for code that has made or checked every field itself.

Messages are immutable everywhere else. A number is set in place, only here, and only while no other code has the
message.
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
"""`message = draft(…)` and `seal(message, "__class__", Message)` are what `unchecked` does, inlined to save a call."""
numbered = Message
"""Builds a message from positional arguments, as `unchecked` does.

A message that is built with its number is not checked.
"""


def plain(message_id: str, topic: str, payload: bytes, now_ns: int, sender: str, content_type: str) -> Message:
    """As `unchecked`, without a number and without other fields."""
    message: Any = Unchecked(message_id, topic, payload, now_ns, 0, sender, content_type)
    force_setattr(message, "__class__", Message)
    return message  # type: ignore[no-any-return]  # a Message now


def unchecked(*fields: Any) -> Message:
    """A message with these fields, by position, without changes."""
    message: Any = Unchecked(*fields)
    # Message only adds checks to Unchecked, and no fields, so the class can be set afterwards.
    force_setattr(message, "__class__", Message)
    return message  # type: ignore[no-any-return]  # a Message now


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
    """Set the number of a message; 0 removes it."""
    force_setattr(message, "seq", seq)


def number_all(messages: Iterable[Message], first: int) -> None:
    """Give messages consecutive numbers."""
    deque(map(force_setattr, messages, repeat("seq"), count(first)), 0)


def take_numbers(messages: Iterable[Message]) -> None:
    """Remove the numbers of messages that no subscriber got, so that no range of delivered messages includes them."""
    deque(map(force_setattr, messages, repeat("seq"), repeat(0)), 0)


def without_numbers(messages: Sequence[Message]) -> list[Message]:
    """Copies without a number, for code that numbers them in place."""
    copies = list(map(copy.copy, messages))
    take_numbers(copies)
    return copies
