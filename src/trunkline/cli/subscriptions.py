"""Durable subscriptions on the command line: letting go of one."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable
from pathlib import Path

import typer

from trunkline.cli import show
from trunkline.cli.access import owning
from trunkline.errors import UsageError
from trunkline.journal.journal import Journal
from trunkline.journal.stats import CursorStats
from trunkline.journal.stats import stats as stats_of


def forget(directory: Path, name: str, yes: bool, json: bool) -> None:
    """Remove a durable subscription for good, and say what that was. Ends with 1 if it is still there, or never was."""
    if not yes and not show.can_ask():
        raise UsageError("there is no terminal to ask on whether it shall go for good: say so with --yes")
    instead = f"stop it, or have it do this: await bus.forget_durable({name!r})"
    with owning(instead), Journal(directory, threaded=False) as journal:
        # Nobody can start meanwhile: what goes is what was asked about.
        known = {each.name: each for each in stats_of(directory).cursors}
        found = known.get(name)
        gone = found is not None and (yes or _agreed(found))
        if gone:
            asyncio.run(journal.forget(name))
            del known[name]
    if json:
        show.json({"forgotten": found if gone else None, "left": list(known)})
    elif found is None:
        show.notice(f"there is no durable subscription {name!r}: {_hint(name, known)}")
    elif gone:
        show.output(f"forgotten: {_described(found)}")
    else:
        show.output(f"nothing was changed: {name} is still there")
    if not gone:
        raise typer.Exit(1)


def _agreed(cursor: CursorStats) -> bool:
    return show.ask(f"{_described(cursor)}. If it comes again, it begins anew. Forget it?")


def _described(cursor: CursorStats) -> str:
    behind = show.count(cursor.behind, "message")
    return f"{cursor.name} on {cursor.pattern}, at number {cursor.high:,}, {behind} behind"


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(known)
    if not names:
        return "this journal has none"
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
