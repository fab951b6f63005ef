"""Durable subscriptions on the command line: deleting one, in a journal or at a hub."""

from __future__ import annotations

import asyncio
import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.cli.access import owning
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect
from trunkline.errors import UsageError
from trunkline.hub.serve import run
from trunkline.journal.journal import Journal
from trunkline.journal.stats import CursorStats
from trunkline.journal.stats import stats as stats_of

Name = Annotated[str, typer.Argument(help="The name, or the group, of a durable subscription.", metavar="NAME")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]
AFTER = "A subscriber of this name then starts from scratch. Delete it?"


def forget(name: Name, hub: Hub = "", yes: Yes = False, json: AsJson = False) -> None:
    """Delete a durable subscription at a running hub, and its pending messages. Its subscribers must have left.

    With access rules, only its owner, or a client with the right to administer its topics, can delete it. Exits with 1
    if nothing was deleted.
    """
    _check(yes)
    agreed = yes or show.ask(f"The durable subscription {name}. {AFTER}")

    async def work() -> bool:
        async with connect(hub_at(hub), name="trunkline forget") as bus:
            return await bus.forget_durable(name)

    gone = agreed and run(work())
    if json:
        show.json({"forgotten": name if gone else None})
    elif gone:
        show.output(f"deleted: {name}")
    elif agreed:
        show.notice(f"the hub has no durable subscription {name!r}")
    else:
        show.output(f"nothing was deleted: {name} still exists")
    if not gone:
        raise typer.Exit(1)


def _check(yes: bool) -> None:
    if not yes and not show.can_ask():
        raise UsageError("not a terminal: pass --yes to confirm the deletion")


def forget_in(directory: Path, name: str, yes: bool, json: bool) -> None:
    """Delete a durable subscription and show what it was. Exits with 1 if nothing was deleted."""
    _check(yes)
    instead = (
        f"if it is a hub: trunkline forget {shlex.quote(name)}; "
        f"otherwise stop it, or call there: await bus.forget_durable({name!r})"
    )
    with owning(instead), Journal(directory, threaded=False) as journal:
        # The lock is held, so the deleted data is the data that is shown.
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
        show.output(f"deleted: {_described(found)}")
    else:
        show.output(f"nothing was deleted: {name} still exists")
    if not gone:
        raise typer.Exit(1)


def _agreed(cursor: CursorStats) -> bool:
    return show.ask(f"{_described(cursor)}. {AFTER}")


def _described(cursor: CursorStats) -> str:
    behind = show.counted(cursor.behind, "message")
    return f"{cursor.name} on {cursor.pattern}, at number {cursor.high:,}, {behind} behind"


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(known)
    if not names:
        return "this journal has none"
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
