"""Arguments and options that several commands share: a directory, a pattern, a range of messages."""

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
    str | None, typer.Option(help="From this time, such as 2026-11-16T10:00:00Z; without a zone it is UTC.")
]
Until = Annotated[str | None, typer.Option(help="Up to this time, which is not included.")]


def hub_at(url: str) -> str:
    """The URL of the hub: the given one, or the default."""
    url = url or os.environ.get("TRUNKLINE_HUB", "") or default_url()
    if url.startswith("memory:"):
        raise UsageError("memory: works inside one process only: pass the URL of a hub")
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
    """Numbers and times as the reader takes them. Raises UsageError if the range is empty."""
    begin, end = moment(since, "--since"), moment(until, "--until")
    if last is not None and last < first:
        raise UsageError(f"--first {first} is greater than --last {last}: the range is empty")
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"--since {since} is not before --until {until}: the range is empty")
    return {"first": first, "last": last, "since": begin, "until": end}
