"""Arguments and options that several commands share: a directory, a pattern, a range of messages."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from trunkline.errors import InvalidSettings, UsageError
from trunkline.moment import utc
from trunkline.settings import Settings


def _there(directory: Path) -> Path:
    # Imported here, so that commands that use no journal do not import it.
    from trunkline.cli.access import there

    return there(directory)


Directory = Annotated[
    Path, typer.Argument(help="The directory of the journal.", show_default=False, callback=_there, metavar="DIRECTORY")
]
FirstJournal = Annotated[Path | None, typer.Argument(help="The directory of the journal.", show_default=False)]
MoreJournals = Annotated[
    list[Path] | None, typer.Option("--journal", help="The directory of a journal; repeat it for several.")
]
Pattern = Annotated[
    str, typer.Argument(help="Only topics that match: * is one token, > the rest, as in 'orders.>'.", metavar="PATTERN")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line.")]
Hub = Annotated[
    str,
    typer.Option(
        help="The hub's URL; otherwise $TRUNKLINE_HUB, or the socket in the runtime directory.", metavar="URL"
    ),
]
First = Annotated[int, typer.Option(help="The number of the first message.", min=1)]
Last = Annotated[int | None, typer.Option(help="The number of the last message, inclusive.", min=1)]
Since = Annotated[
    str | None,
    typer.Option(help="From this time, such as 2026-11-16T10:00:00Z or seconds since 1970; without a zone it is UTC."),
]
Until = Annotated[str | None, typer.Option(help="Up to this time, which is not included.")]


def hub_at(url: str) -> str:
    """The URL of the hub: the given one, else the one from the settings, else the default."""
    from trunkline.connect import address_of

    found = address_of(url or Settings.load().hub or "hub:", Settings())
    if found.startswith("memory:"):
        raise UsageError("memory: works inside one process only: pass the URL of a hub")
    return found


def moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        return utc(text)
    except InvalidSettings as error:
        raise UsageError(f"{option} {error}") from None


def stretch(first: int, last: int | None, since: str | None, until: str | None) -> dict[str, Any]:
    """Convert the range options to the arguments of the reader. Raises UsageError if the range is empty."""
    begin, end = moment(since, "--since"), moment(until, "--until")
    if last is not None and last < first:
        raise UsageError(f"--first {first} is greater than --last {last}: the range is empty")
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"--since {since} is not before --until {until}: the range is empty")
    return {"first": first, "last": last, "since": begin, "until": end}


def journals_of(first: Path | None, more: list[Path] | None) -> list[Path]:
    """All journals that were given. Raises UsageError if there are none, or if one is not a journal."""
    given = [*([] if first is None else [first]), *(more or ())]
    if not given:
        raise UsageError("pass the directory of a journal: trunkline pipeline run DIRECTORY")
    return [_there(each) for each in given]
