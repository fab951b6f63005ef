"""What commands are given in the same way: a directory, a pattern, and which messages."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from trunkline.cli.access import there
from trunkline.errors import UsageError
from trunkline.transports.runtime import default_url

Directory = Annotated[
    Path, typer.Argument(help="The directory of the journal.", show_default=False, callback=there, metavar="DIRECTORY")
]
Pattern = Annotated[
    str, typer.Argument(help="Only topics that match: * is one token, > the rest, as in 'orders.>'.", metavar="PATTERN")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for scripts, one value a line.")]
Hub = Annotated[
    str,
    typer.Option(
        help="The hub's URL; otherwise $TRUNKLINE_HUB, or the socket in the runtime directory.", metavar="URL"
    ),
]
First = Annotated[int, typer.Option(help="From this message on, by its number.", min=1)]
Last = Annotated[int | None, typer.Option(help="Up to this message, by its number; it is included.", min=1)]
Since = Annotated[
    str | None, typer.Option(help="From this time, such as 2026-11-16T10:00:00Z; without a zone it is UTC.")
]
Until = Annotated[str | None, typer.Option(help="Up to this time, which is not included.")]


def hub_at(url: str) -> str:
    """Where the hub is, if it is not said."""
    url = url or os.environ.get("TRUNKLINE_HUB", "") or default_url()
    if url.startswith("memory:"):
        raise UsageError("memory: is inside one process: there is nobody to talk to")
    return url


def moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a time: write it as 2026-11-16T10:00:00Z") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def stretch(first: int, last: int | None, since: str | None, until: str | None) -> dict[str, Any]:
    """Numbers and times as the reader takes them; raises UsageError if nothing can lie between them."""
    begin, end = moment(since, "--since"), moment(until, "--until")
    if last is not None and last < first:
        raise UsageError(f"--first {first} is beyond --last {last}: nothing lies between them")
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"--since {since} is not before --until {until}: nothing lies between them")
    return {"first": first, "last": last, "since": begin, "until": end}
