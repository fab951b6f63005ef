"""Payloads as JSON values. MessagePack types that JSON does not have are converted as msgspec does.

bytes                 a text in base64
timestamp             a text as in RFC 3339
key that is no text   a text, as msgspec writes it: 1 is "1"
nan, infinity         numbers; nan is outside of every bound
anything else         not a JSON value (NotJson)
"""

from __future__ import annotations

import math
from decimal import Decimal
from types import NoneType
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 200
"""The maximum depth of a payload that is checked recursively."""
MAX_KEY_CHARS: Final = 60
_INFINITY: Final = Decimal(f"1{'0' * 400}.1234567")
"""A number above all floats, which JSON Schema can compare."""
_NAN: Final = Decimal(f"2{'0' * 400}.1234567")
_SHOWN: Final = {_INFINITY: math.inf, _INFINITY.copy_negate(): -math.inf, _NAN: math.nan, _NAN.copy_negate(): math.nan}


class NotJson(Exception):
    """A value that is not JSON: its place and its type."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = ""

    def inside(self, place: str) -> NotJson:
        self.path = place + self.path
        return self


class TooDeep(Exception):
    """A value is nested deeper than MAX_DEPTH."""


class JsonValue:
    """A payload as a JSON value. A nan is checked twice, above and below every number, so it fails every bound."""

    def __init__(self, value: Any) -> None:
        self._original = value
        self._nan = _NAN
        self._has_nan = False
        self.value = self._plain(value, 0)

    def below(self) -> Any:
        """The same value with each nan below every number; None if it contains no nan."""
        if not self._has_nan:
            return None
        self._nan = _NAN.copy_negate()
        return self._plain(self._original, 0)

    def _plain(self, value: Any, depth: int) -> Any:
        kind = value.__class__
        if kind in _AS_THEY_ARE:
            return value
        if kind is float:
            return value if math.isfinite(value) else self._endless(value)
        if depth > MAX_DEPTH:
            raise TooDeep
        if kind is dict:
            return self._fields(value, depth + 1)
        if kind is list:
            return self._items(value, depth + 1)
        try:
            return msgspec.to_builtins(value)
        except (TypeError, ValueError) as error:
            raise NotJson(f"{kind.__name__} is not a JSON value") from error

    def _endless(self, value: float) -> Decimal:
        if math.isnan(value):
            self._has_nan = True
            return self._nan
        return _INFINITY if value > 0 else _INFINITY.copy_negate()

    def _items(self, items: list[Any], depth: int) -> list[Any]:
        found: list[Any] = []
        try:
            for item in items:
                found.append(self._plain(item, depth))
        except NotJson as error:
            raise error.inside(f"[{len(found)}]") from error.__cause__
        return found

    def _fields(self, fields: dict[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in fields.items():
            name = key if key.__class__ is str else _name(key)
            if name in found:
                raise NotJson("two keys are the same in JSON").inside(step(name))
            try:
                found[name] = self._plain(value, depth)
            except NotJson as error:
                raise error.inside(step(name)) from error.__cause__
        return found


_AS_THEY_ARE: Final = frozenset((str, int, bool, NoneType))


def _name(key: Any) -> str:
    try:
        (name,) = msgspec.to_builtins({key: None}, str_keys=True)
    except (TypeError, ValueError) as error:
        raise NotJson(f"{key.__class__.__name__} is not a key in JSON") from error
    return str(name)


def nested_too_deeply(value: Any) -> bool:
    """Whether a value is deeper than MAX_DEPTH. Iterative, because the value may be deeper than the stack."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for each in level
            if each.__class__ in (list, dict)
            for child in (each.values() if each.__class__ is dict else each)
            if child.__class__ in (list, dict)
        ]
        if not level:
            return False
    return True


def shown(value: Any) -> Any:
    """A JSON value in its original form, for an error."""
    return _SHOWN.get(value, value) if value.__class__ is Decimal else value


def step(name: Any) -> str:
    """One step into an object, in the syntax of a path."""
    text = str(name)
    if len(text) > MAX_KEY_CHARS:
        text = text[: MAX_KEY_CHARS - 1] + "…"
    return f".{text}" if text.isidentifier() else f"[{text!r}]"
