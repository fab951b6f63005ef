"""`trunkline doctor`: list the shared-memory channels, their owners, and what dead processes left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson
from trunkline.errors import UsageError
from trunkline.memory.reap import reap as remove
from trunkline.memory.survey import EngineFile, MemorySurvey, survey

Reap = Annotated[bool, typer.Option("--reap", help="Show the files that dead processes left, and remove them.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before removing.")]


def doctor(reap: Reap = False, yes: Yes = False, json: AsJson = False) -> None:
    """Show the shared-memory channels of this machine, and what dead processes left behind.

    Nothing is removed without --reap, and never what a living process owns. Exits with 1 if something could not be
    removed.
    """
    found = survey()
    if json:
        show.json(found)
    else:
        _show(found)
    if not reap or not found.left_over:
        return
    if not yes:
        if not show.can_ask():
            raise UsageError("Not a terminal: pass --yes to confirm the removal")
        if not show.ask(f"Remove {show.counted(len(found.left_over), 'file')} of dead processes?"):
            return
    done = remove()
    if json:
        show.json(done)
    else:
        show.output(f"{show.counted(len(done.removed), 'file')} removed, {show.size(done.bytes)}")
        _files("Could not be removed", done.kept)
    if done.kept:
        raise typer.Exit(1)


def _show(found: MemorySurvey) -> None:
    show.table(
        "Processes",
        ["pid", "program", "state", "age", "services"],
        [
            [str(each.pid), each.program, "alive" if each.alive else "dead", _age(each.age_s), ", ".join(each.channels)]
            for each in found.nodes
        ],
    )
    show.table(
        "Services",
        ["name", "kind", "owners", "age"],
        [
            [each.name, each.kind, ", ".join(map(str, each.owners)) or "nobody", _age(each.age_s)]
            for each in found.services
        ],
    )
    _files("Segments", [each for each in found.files if each.kind == "data" and not each.left_over])
    _files("Left by dead processes", found.left_over)
    if not found.files:
        show.output(f"no shared memory below {found.root}")
    elif not found.left_over:
        show.output("no files of dead processes")
    else:
        size = show.size(sum(each.bytes for each in found.left_over))
        show.output(f"dead processes have left {show.counted(len(found.left_over), 'file')}, {size}")


def _files(title: str, files: list[EngineFile]) -> None:
    show.table(
        title,
        ["kind", "owner", "age", "size", "file"],
        [
            [each.kind, str(each.owner or "unknown"), _age(each.age_s), show.size(each.bytes), str(Path(each.path))]
            for each in files
        ],
    )


def _age(seconds: float) -> str:
    return f"{seconds:,.0f} s"
