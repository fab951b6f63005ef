"""The table of commands, and the exit codes for errors and Ctrl-C."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trunkline.cli import INTERRUPTED, show
from trunkline.cli.help import name_values
from trunkline.cli.summaries import SUMMARIES
from trunkline.errors import HubUnavailable, MissingExtra, TrunklineError, UsageError

PROGRAM = "trunkline"
HELP = {"help_option_names": ["-h", "--help"]}
CODES = "Exit codes: 0 for success, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM."


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # No message: the person pressed Ctrl-C.
            raise typer.Exit(INTERRUPTED) from None


COMMANDS = {
    "up": "up:up",
    "pub": "talk:pub",
    "sub": "talk:sub",
    "request": "talk:request",
    "ping": "control:ping",
    "control": "control:control",
    "status": "watch:status",
    "clients": "clients:clients",
    "subscribers": "clients:subscribers",
    "top": "top:top",
    "page": "page:page",
    "trace": "watch:trace",
    "explain": "explain:explain",
    "forget": "subscriptions:forget",
    "record": "record:record",
    "bridge": "bridge:bridge",
    "doctor": "doctor:doctor",
    "sql": "sql:sql",
    "completion": "completion:completion",
}
GROUPS = {
    "channels": "directory:channels",
    "schemas": "directory:schemas",
    "dead-letters": "dead_letters:app",
    "journal": "journal:app",
    "pipeline": "pipeline:app",
    "kernel": "kernel:app",
    "keys": "keys:app",
}
"""The module of each command, below `trunkline.cli`. Only the module of the called command is imported."""
KNOWN = frozenset((*COMMANDS, *GROUPS))
COMPLETING = "_TRUNKLINE_COMPLETE"
"""The environment variable that a shell sets to request completions."""


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        name="trunkline",
        cls=Commands,
        epilog=CODES,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings=HELP,
    )
    app.callback()(root)
    return app


def program(word: str | None = None) -> typer.Typer:
    """Build the command line with all commands, or with the named one only."""
    app = _without_commands()
    known = {**COMMANDS, **GROUPS}
    for name, place in known.items() if word not in known else [(word, known[word])]:
        module, _, attribute = place.partition(":")
        found = getattr(import_module(f"trunkline.cli.{module}"), attribute)
        if name in GROUPS:
            app.add_typer(found, name=name, context_settings=HELP)
        else:
            app.command()(found)
    return app


def command(word: str | None = None) -> Any:
    """As `program`, ready to be called, with help texts in the format of `help.py`."""
    return _in_one_form(program(word))


def _in_one_form(app: typer.Typer) -> Any:
    found = typer.main.get_command(app)
    name_values(found)
    return found


def overview() -> Any:
    """As `command`, but only for listing commands and for suggesting a similar name. It imports no command modules."""
    app = _without_commands()
    for name in (*COMMANDS, *GROUPS):
        app.command(name, help=SUMMARIES[name])(_unavailable)
    return _in_one_form(app)


def _unavailable() -> None:
    raise NotImplementedError("the placeholder of a command was called")


def __getattr__(name: str) -> Any:
    """`app` is the command line with all commands, created on first use."""
    if name == "app":
        return program()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version(wanted: bool) -> None:
    if wanted:
        print("trunkline", version_of("trunkline"))
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """One message bus for Python agents, actors, notebooks and instruments."""


def run(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit code: see CODES."""
    words = sys.argv[1:] if arguments is None else arguments
    import_module("typer.completion").completion_init()
    try:
        is_called = COMPLETING in os.environ or KNOWN.intersection(words)
        found = command(words[0] if words else None) if is_called else overview()
        found(args=words, prog_name=PROGRAM)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except TrunklineError as error:
        return _complain(error)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        return _complain(MissingExtra("journal", "the lake (Parquet files, Arrow batches)"))
    except OSError as error:
        show.notice(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return 1
    return 0


def _complain(error: TrunklineError) -> int:
    text = str(error)
    if type(error) is HubUnavailable:
        # The text of the error names a parameter of `connect`, which is meant for programs.
        text = (
            f"no hub at {error.url} ({error.why}): start one with `{error.command}`, or pass the URL of a hub as --hub"
        )
    for line in [*f"error: {text}".split("\n"), *getattr(error, "__notes__", ())]:
        show.notice(line)
    return 2 if isinstance(error, UsageError) else 1
