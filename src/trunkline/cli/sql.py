"""`trunkline sql`: run a SELECT on a journal, without Java."""

from __future__ import annotations

import csv as csv_format
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trunkline.cli import show
from trunkline.cli.access import there
from trunkline.cli.options import AsJson
from trunkline.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 100
JOURNAL = "TRUNKLINE_JOURNAL"


def sql(
    words: Annotated[
        list[str],
        typer.Argument(
            help="The directory of the journal, and a query such as 'select topic, count(*) from messages group by"
            " topic'. The tables are messages, fates and dead_letters.",
            metavar="[DIRECTORY] QUERY",
            show_default=False,
        ),
    ],
    journal: Annotated[
        Path | None, typer.Option(help=f"The directory, if it is not given before the query; otherwise ${JOURNAL}.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help=f"The number of rows; by default {MAX_ROWS}, and with --json and --csv all.", min=0),
    ] = None,
    json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a line of names.")] = False,
) -> None:
    """Query a journal with SQL, without Java. The tables of a pipeline are queried with `trunkline pipeline sql`."""
    from trunkline.journal.sql import query

    if json and csv:
        raise UsageError("pass either --json or --csv, not both")
    directory, text = _read(words, journal)
    limit = rows if rows is not None or json or csv else MAX_ROWS
    found = query(directory, text, max_rows=None if limit is None else limit + 1)
    shown = found if limit is None else found.slice(0, limit)
    if json:
        for row in shown.to_pylist():
            show.json(row, flush=False)
    elif csv:
        _print_csv(shown)
    else:
        show.table("", shown.column_names, [[_cell(value) for value in row.values()] for row in shown.to_pylist()])
    if limit is not None and found.num_rows > limit:
        show.notice(f"more than {show.counted(limit, 'row')}: --rows sets how many are shown")
    elif not found.num_rows and not json and not csv:
        show.notice("no rows")


def _read(words: list[str], journal: Path | None) -> tuple[Path, str]:
    """Split the arguments into the journal's directory and the query."""
    named = journal or (Path(os.environ[JOURNAL]) if os.environ.get(JOURNAL) else None)
    match words:
        case [directory, query] if journal is None:
            return there(Path(directory)), query
        case [query] if named is not None:
            return there(named), query
        case [_]:
            raise UsageError('which journal? Write `trunkline sql DIRECTORY "select …"`')
    raise UsageError('write the query as one argument: `trunkline sql DIRECTORY "select …"`')


def _print_csv(found: pa.Table) -> None:
    writer = csv_format.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.column_names)
    for row in found.to_pylist():
        writer.writerow([_text(value) for value in row.values()])


def _cell(value: Any) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return value if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
