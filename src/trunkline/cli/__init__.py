"""The command line: `trunkline`."""

from __future__ import annotations

import io
import sys

from trunkline.errors import MissingExtra


def main() -> None:
    try:
        import typer  # noqa: F401  # only whether it is there
    except ImportError:
        print(MissingExtra("cli", "the command line"), file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character gets its number, not the end of the program.
            stream.reconfigure(errors="backslashreplace")
    try:
        from trunkline.cli.main import run

        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)
