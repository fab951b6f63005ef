"""The public names, with their signatures and docstrings."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import trunkline as tl
from docs_site.reference.signatures import signature_of
from docs_site.reference.words import prose

MODULES = ("actors", "hooks", "journal", "jupyter", "memory", "spark", "testing")


def public(module: types.ModuleType) -> list[str]:
    """The names that a module offers, without modules and errors, which have a page of their own."""
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    return [name for name in sorted(names) if _is_ours(getattr(module, name))]


def _is_ours(value: Any) -> bool:
    if not (inspect.isclass(value) or inspect.isroutine(value)) or not value.__module__.startswith("trunkline"):
        return False
    return not (inspect.isclass(value) and issubclass(value, tl.TrunklineError))


def page() -> str:
    lines = [
        "# API",
        "",
        "The public names of each module, from the docstrings. [Errors](errors.md) and [settings](settings.md) have",
        "pages of their own.",
        "",
    ]
    for name in ("", *MODULES):
        module = tl if not name else __import__(f"trunkline.{name}", fromlist=["_"])
        lines += [f"## {module.__name__}", "", prose(module.__doc__).split("\n\n")[0], ""]
        for each in public(module):
            lines += described(each, getattr(module, each))
    return "\n".join(lines) + "\n"


def described(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield from _signature(name, value)
    yield prose(value.__doc__ if "__doc__" in vars(value) or not inspect.isclass(value) else "")
    yield ""
    if inspect.isclass(value):
        for method, function in _methods(value):
            yield from _signature(f"{name}.{method}", function)
            yield prose(inspect.getdoc(function))
            yield ""


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if inspect.isfunction(function) and function.__doc__:
            yield name, function


def _signature(name: str, value: Any) -> Iterator[str]:
    if not callable(value):
        return
    wait = "async " if inspect.iscoroutinefunction(value) else ""
    yield "```text"
    yield f"{wait}{signature_of(name, value)}"
    yield "```"
    yield ""
