"""The errors: their tree, and what each is for."""

from __future__ import annotations

import inspect
import re

import trunkline as tl
from docs_site.reference.words import cell, prose
from trunkline import errors


def page() -> str:
    assert errors.__doc__ is not None
    names = ["TrunklineError", *re.findall(r"[├└]── (\w+)", errors.__doc__)]
    lines = [
        "# Errors",
        "",
        "All errors of Trunkline are a `TrunklineError`. Each says in one line what happened and what to do next.",
        "`retryable` says whether the same call may succeed later. The [specification](../specification.md#errors)",
        "says which call raises what.",
        "",
        "```text",
        errors.__doc__[errors.__doc__.index("TrunklineError") :].strip(),
        "```",
        "",
        "| error | kind of | retryable | what it says |",
        "| --- | --- | --- | --- |",
    ]
    for name in names:
        kind = getattr(tl, name)
        about = prose(kind.__doc__) if "__doc__" in vars(kind) else ""
        retryable = "yes" if kind.retryable else "no"
        lines.append(f"| `{name}` | `{kind.__mro__[1].__name__}` | {retryable} | {cell(about)} |")
    assert inspect.isclass(tl.TrunklineError)
    return "\n".join(lines) + "\n"
