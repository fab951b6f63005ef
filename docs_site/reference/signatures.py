"""Signatures as text: one line if it fits, otherwise a line for each parameter."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

WIDTH = 88
"""What fits into a code block of the site at 1280 pixels."""


def signature_of(name: str, value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (ValueError, TypeError):
        return f"{name}(…)"
    parameters = [
        each if each.default is each.empty else each.replace(default=_Shown(each.default))
        for each in found.parameters.values()
    ]
    parts = [_plain(part) for part in _parts(parameters) if part != "self"]
    end = _plain(str(found.replace(parameters=[])).removeprefix("()"))
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){end}"])


def _parts(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The parameters, with the marks for those that are by position or by keyword only."""
    before: inspect.Parameter | None = None
    for each in parameters:
        if before and before.kind is each.POSITIONAL_ONLY and each.kind is not each.POSITIONAL_ONLY:
            yield "/"
        if each.kind is each.KEYWORD_ONLY and (before is None or before.kind < each.VAR_POSITIONAL):
            yield "*"
        yield str(each)
        before = each
    if before and before.kind is before.POSITIONAL_ONLY:
        yield "/"


def _plain(text: str) -> str:
    """Without the quotes of annotations that were not evaluated, and without the name of the package."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).replace("trunkline.", "").replace("typing.", "")


class _Shown:
    """A default value as somebody would write it; `…` if it cannot be written."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, msgspec.Struct):
            return f"{type(value).__name__}()" if value == type(value)() else "…"
        if isinstance(value, type):
            return value.__name__
        return repr(value) if "<" not in repr(value) else "…"
