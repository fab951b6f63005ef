"""The commands of `trunkline`, with their options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from docs_site.reference.words import cell, prose
from trunkline.cli.main import CODES, program


def page() -> str:
    command = typer.main.get_command(program())
    lines = ["# Command line", "", CODES, ""]
    for name, each in command.commands.items():  # type: ignore[attr-defined]
        lines += _described(f"trunkline {name}", each, 2)
    return "\n".join(lines) + "\n"


def _described(name: str, command: Any, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {name}"
    yield ""
    yield prose(command.help)
    yield ""
    parts = getattr(command, "commands", {})
    rows = [row for parameter in command.params if (row := _row(parameter)) and not parts]
    if rows:
        yield "| argument or option | what it does |"
        yield "| --- | --- |"
        yield from rows
        yield ""
    for part, each in parts.items():
        yield from _described(f"{name} {part}", each, depth + 1)


def _row(parameter: Any) -> str:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return ""
    words = getattr(parameter, "help", None) or ""
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name.upper()]
    return f"| `{cell(', '.join(names))}` | {cell(prose(words))} |"
