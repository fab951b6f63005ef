"""The commands by name, and how errors and Ctrl-C end them."""

from __future__ import annotations

import sys

import typer

from trunkline.cli import journal
from trunkline.errors import TrunklineError, UsageError

app = typer.Typer(
    name="trunkline",
    help="One message bus for Python agents, actors, notebooks and instruments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(journal.app, name="journal")


@app.callback()
def root() -> None:
    """One message bus for Python agents, actors, notebooks and instruments."""


def run(arguments: list[str] | None = None) -> int:
    """Run a command; 0 if it went well, 1 if not, 2 if it was called wrongly, 130 after Ctrl-C."""
    try:
        app(args=arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0
