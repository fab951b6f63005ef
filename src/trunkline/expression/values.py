"""The values of a filter at run time: missing fields, access to a payload, comparisons that never raise.

Payloads are untrusted data, sometimes of unknown types, so all code that touches one catches `Exception`: a value
that cannot be read is MISSING, a comparison that cannot be made is False. The language itself is in translation.py.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Final, TypeGuard


class Missing:
    """A missing field, or a result that does not exist. False in every comparison and as a condition."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()
# Marks a payload that is not decoded yet. With MISSING, a broken payload would be decoded again at each access.
UNREAD = object()

MAX_MATCHED_CHARACTERS: Final = 10_000
"""Matching takes time in proportion to pattern length times text length: 5 s for a million characters."""
MAX_BITS: Final = 4096
"""The size limit of integers in arithmetic, in bits.

JSON can contain integers of 14,000 bits, and products are larger.
"""

# Only these types are measured and searched: iterating over another object may never end.
_CONTAINERS = (str, bytes, list, tuple, Mapping, set, frozenset)


def decode(payload: Callable[[], object]) -> object:
    try:
        return payload()
    except Exception:
        return MISSING


def walk(value: object, *path: str | int) -> object:
    """Follow mapping keys, sequence indexes and declared public fields; MISSING where the path ends early."""
    try:
        for key in path:
            # Most payloads are dicts, and the check for the Mapping ABC takes 140 ns longer.
            value = value.get(key, MISSING) if type(value) is dict else _step(value, key)
    except Exception:
        return MISSING
    return value


def _step(value: object, key: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(key, MISSING)
    if isinstance(value, list | tuple):
        return value[key] if isinstance(key, int) and -len(value) <= key < len(value) else MISSING
    if isinstance(key, str) and not key.startswith("_") and key in _declared_fields(type(value)):
        field = getattr(value, key, MISSING)
        return MISSING if callable(field) else field
    return MISSING


def _declared_fields(kind: type) -> Collection[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    fields: Collection[str] = getattr(kind, "__struct_fields__", ())  # msgspec's
    return fields


def settled(value: object) -> object:
    """The value, if it has a truth value; an array, for example, has none."""
    try:
        bool(value)
    except Exception:
        return MISSING
    return value


def compare(operation: Callable[[object, object], object], left: object, right: object) -> bool:
    if left is MISSING or right is MISSING:
        return False
    try:
        return bool(operation(left, right))
    except Exception:
        return False


def same(left: object, right: object) -> object:
    """Equality, where an IntEnum also equals its name in any case: `type == 'request'`."""
    # `_name_` is what `name` returns, without the 100 ns that `name` takes in CPython 3.11.
    if isinstance(right, str) and isinstance(left, IntEnum):
        return left._name_.lower() == right.lower()
    if isinstance(left, str) and isinstance(right, IntEnum):
        return left.lower() == right._name_.lower()
    return left == right


def differs(left: object, right: object) -> object:
    return not same(left, right)


def within(item: object, container: object) -> bool:
    if not isinstance(container, _CONTAINERS):
        raise TypeError  # for `compare`, so that `in` and `not in` are both False
    if isinstance(item, IntEnum) and not isinstance(container, str | bytes):
        return any(same(item, other) for other in container)
    return item in container


def not_within(item: object, container: object) -> bool:
    return not within(item, container)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= MAX_BITS)


def compute(operation: Callable[[int | float, int | float], object], left: object, right: object) -> object:
    """Arithmetic on numbers of bounded size only: `'a' * 10**9` must not exhaust the memory of the hub."""
    if not (_is_number(left) and _is_number(right)):
        return MISSING
    try:
        return operation(left, right)
    except Exception:
        return MISSING


def length(value: object) -> object:
    try:
        return len(value) if isinstance(value, _CONTAINERS) else MISSING
    except Exception:
        return MISSING


def lower(value: object) -> object:
    return text.lower() if (text := _text(value)) is not None else MISSING


def upper(value: object) -> object:
    return text.upper() if (text := _text(value)) is not None else MISSING


def startswith(value: object, prefix: object) -> bool:
    text = _text(value)
    return text is not None and isinstance(prefix, str) and text.startswith(prefix)


def endswith(value: object, suffix: object) -> bool:
    text = _text(value)
    return text is not None and isinstance(suffix, str) and text.endswith(suffix)


def contains(container: object, item: object) -> bool:
    return compare(within, item, container)


def matches(value: object, pattern: re.Pattern[str]) -> bool:
    text = _text(value)
    return text is not None and len(text) <= MAX_MATCHED_CHARACTERS and pattern.match(text) is not None


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return value.name if isinstance(value, IntEnum) else None


# All names that a compiled filter can use, besides its arguments.
SCOPE: Mapping[str, object] = {
    "__builtins__": {},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "is_", "is_not")},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")},
    **{f.__name__: f for f in (decode, walk, settled, compare, same, differs, within, not_within, compute)},
    **{f.__name__: f for f in (length, lower, upper, startswith, endswith, contains, matches)},
    "MISSING": MISSING,
    "UNREAD": UNREAD,
}
