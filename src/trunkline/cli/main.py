"""The commands by name, and how errors and Ctrl-C end them."""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trunkline.cli import INTERRUPTED, dead_letters, directory, journal, kernel, keys, pipeline, show
from trunkline.cli.control import control, ping
from trunkline.cli.doctor import doctor
from trunkline.cli.explain import explain
from trunkline.cli.subscriptions import forget
from trunkline.cli.talk import pub, request, sub
from trunkline.cli.top import top
from trunkline.cli.up import up
from trunkline.cli.watch import status, trace
from trunkline.errors import MissingExtra, TrunklineError, UsageError

HELP = {"help_option_names": ["-h", "--help"]}
CODES = "Exit codes: 0 for success, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM."


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # No message: the person pressed Ctrl-C.
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="trunkline",
    cls=Commands,
    epilog=CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)
for command in (up, pub, sub, request, ping, control, status, top, trace, explain, forget, doctor):
    app.command()(command)
app.add_typer(directory.channels, name="channels", context_settings=HELP)
app.add_typer(directory.schemas, name="schemas", context_settings=HELP)
app.add_typer(dead_letters.app, name="dead-letters", context_settings=HELP)
app.add_typer(journal.app, name="journal", context_settings=HELP)
app.add_typer(pipeline.app, name="pipeline", context_settings=HELP)
app.add_typer(kernel.app, name="kernel", context_settings=HELP)
app.add_typer(keys.app, name="keys", context_settings=HELP)


def _version(wanted: bool) -> None:
    if wanted:
        print("trunkline", version_of("trunkline"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """One message bus for Python agents, actors, notebooks and instruments."""


def run(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit code: see CODES."""
    try:
        app(args=arguments)
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
    for line in [*f"error: {error}".split("\n"), *getattr(error, "__notes__", ())]:
        show.notice(line)
    return 2 if isinstance(error, UsageError) else 1
