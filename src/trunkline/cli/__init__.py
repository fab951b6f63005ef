"""The command line: `trunkline`."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import typer  # noqa: F401  # only whether it is there
    except ImportError:
        print("the command line needs an optional part: pip install 'trunkline[cli]'", file=sys.stderr)
        sys.exit(2)
    from trunkline.cli.main import run

    sys.exit(run())
