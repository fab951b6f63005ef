"""The leaves of schema_check.py: what single keywords demand of single values, and which keywords there are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import NoneType
from typing import Any, Final

import msgspec

from trunkline.errors import UsageError
from trunkline.schema_nodes import KINDS, short, significant, text_of

Problem = tuple[str, str]
"""Where, as a path such as `$.price`, and what is wrong there."""
Check = Callable[[Any], Problem | None]
"""Looks at a value of a known class; the path begins at the value."""
Table = dict[type, Check | None]
"""Which classes of values may be there, and what is demanded of each beyond that."""

CLASSES: Final = (NoneType, bool, int, float, str, bytes, datetime, list, dict)
_NAMES: dict[type, str] = {
    NoneType: "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    bytes: "bytes",
    datetime: "timestamp",
    list: "array",
    dict: "object",
}
MAX_KEY_CHARS: Final = 60


# Keywords


def _is_count(value: Any) -> bool:
    return value.__class__ is int and value >= 0


def _is_number(value: Any) -> bool:
    return value.__class__ in (int, float) and value == value


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_type(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in KINDS for kind in kinds)


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, OverflowError, RecursionError):
        return False


_VALID: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list),
    "const": lambda value: True,
    "$ref": lambda value: isinstance(value, str),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _is_schemas),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames"), _is_schema),
    "prefixItems": lambda value: isinstance(value, list) and all(map(_is_schema, value)),
    "properties": lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())),
    "required": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    "pattern": _is_pattern,
    "uniqueItems": lambda value: isinstance(value, bool),
    **dict.fromkeys(("format", "contentEncoding"), lambda value: isinstance(value, str)),
}
KEYWORDS: Final = frozenset(_VALID)
"""Those that constrain, and are known."""


def words_of(node: dict[str, Any], where: str) -> dict[str, Any]:
    """The keywords that constrain; raises UsageError for one that is not known, or has a value that it cannot have."""
    words = significant(node)
    for key, value in words.items():
        valid = _VALID.get(key)
        if valid is None:
            near = difflib.get_close_matches(key, KEYWORDS, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else "say it otherwise, or begin it with x- if it only describes"
            )
            raise UsageError(f"{where}: the keyword {short(key)} is not known here, and may constrain: {hint}")
        if not valid(value):
            raise UsageError(f"{where}: {key} cannot be {short(value)}")
    return words


# Single values


def number_check(words: dict[str, Any]) -> Check | None:
    low, high = words.get("minimum"), words.get("maximum")
    above, below = words.get("exclusiveMinimum"), words.get("exclusiveMaximum")
    unit = words.get("multipleOf")
    if low is high is above is below is unit is None:
        return None

    def check(value: float) -> Problem | None:
        # Put so that a value that is not a number fails everywhere.
        if low is not None and not value >= low:
            return "", f"{short(value)} is below {low}"
        if high is not None and not value <= high:
            return "", f"{short(value)} is above {high}"
        if above is not None and not value > above:
            return "", f"{short(value)} is not above {above}"
        if below is not None and not value < below:
            return "", f"{short(value)} is not below {below}"
        if unit is not None and not _is_multiple(value, unit):
            return "", f"{short(value)} is no multiple of {unit}"
        return None

    return check


def _is_multiple(value: float, unit: float) -> bool:
    if value.__class__ is int and unit.__class__ is int:
        return value % unit == 0
    try:
        ratio = value / unit
        return abs(ratio - round(ratio)) <= 1e-9 * max(1.0, abs(ratio))
    except (OverflowError, ValueError):
        # Too large, or not a number.
        return False


def text_check(words: dict[str, Any], patterns: bool) -> Check | None:
    low, high = words.get("minLength", 0), words.get("maxLength")
    pattern = words.get("pattern") if patterns else None
    search = None if pattern is None else re.compile(pattern).search
    if not low and high is None and search is None:
        return None

    def check(value: str) -> Problem | None:
        if len(value) < low:
            return "", f"{len(value)} characters, and at least {low} are wanted"
        if high is not None and len(value) > high:
            return "", f"{len(value)} characters, and at most {high} are allowed"
        if search is not None and search(value) is None:
            return "", f"{short(value)} does not match {short(pattern)}"
        return None

    return check


def one_of(values: list[Any]) -> Table:
    """These values and no others. True is not 1, and 1.0 is not the integer 1."""
    table: Table = {}
    plain: dict[type, set[Any]] = {}
    for value in values:
        for kind in (int, float) if value.__class__ is float else (value.__class__,):
            key = text_of(value) if kind in (list, dict) else value
            plain.setdefault(kind, set()).add(key)
    why = f"it is none of {short(values)}"
    for kind, allowed in plain.items():
        table[kind] = _member(allowed, why, _text) if kind in (list, dict) else _member(allowed, why, None)
    return table


def _member(allowed: set[Any], why: str, key: Callable[[Any], Any] | None) -> Check:
    def check(value: Any) -> Problem | None:
        return None if (value if key is None else key(value)) in allowed else ("", why)

    return check


def _text(value: Any) -> str | None:
    try:
        return text_of(value)
    except UsageError:
        return None


def repeated(values: list[Any]) -> int | None:
    """The place of the first value that was there before."""
    seen: set[bytes | str] = set()
    for index, value in enumerate(values):
        try:
            key: bytes | str = msgspec.msgpack.encode(value, order="deterministic")
        except TypeError:
            # Keys that are no texts have no order.
            key = repr(value)
        if key in seen:
            return index
        seen.add(key)
    return None


# Putting them together


def anything(value: Any) -> Problem | None:
    return None


def both(one: Table, other: Table) -> Table:
    """What fits the one and the other."""
    table: Table = {}
    for kind, first in one.items():
        if kind in other:
            second = other[kind]
            if first is None or second is None:
                table[kind] = second if first is None else first
            else:
                table[kind] = _chain(first, second)
    return table


def _chain(first: Check, second: Check) -> Check:
    def check(value: Any) -> Problem | None:
        return first(value) or second(value)

    return check


def choice(name: str, by_value: dict[Any, Check]) -> Check:
    """Objects that a field tells apart."""
    why = f"it is none of {short(list(by_value))}"

    def check(value: dict[Any, Any]) -> Problem | None:
        tag = value.get(name)
        chosen = by_value.get(tag) if tag.__class__ in (str, int) else None
        if chosen is None:
            return step(name), why if name in value else "a required field is missing"
        return chosen(value)

    return check


def check_of(table: Table) -> Check | None:
    """For a value of any class; None if everything fits."""
    if len(table) == len(CLASSES) and not any(table.values()):
        return None
    if len(table) == 1:
        ((only, inner),) = table.items()
        return _single(only, inner)
    wanted = _wanted(table)

    def check(value: Any) -> Problem | None:
        try:
            inner = table[value.__class__]
        except KeyError:
            return _other(value, wanted)
        return None if inner is None else inner(value)

    return check


def _single(only: type, inner: Check | None) -> Check:
    wanted = _NAMES[only]

    def check(value: Any) -> Problem | None:
        if value.__class__ is not only:
            return _other(value, wanted)
        return None if inner is None else inner(value)

    return check


def _wanted(table: Table) -> str:
    names = [
        _NAMES[kind]
        for kind in CLASSES
        if kind in table and not (kind in (bytes, datetime) and str in table) and not (kind is int and float in table)
    ]
    return " or ".join(names) or "nothing"


def _other(value: Any, wanted: str) -> Problem:
    return "", f"{_NAMES.get(value.__class__, value.__class__.__name__)} instead of {wanted}"


def step(name: Any) -> str:
    """One step into an object, as a path has it."""
    text = str(name)
    if len(text) > MAX_KEY_CHARS:
        text = text[: MAX_KEY_CHARS - 1] + "…"
    return f".{text}" if text.isidentifier() else f"[{text!r}]"
