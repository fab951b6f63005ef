"""The command line: `trunkline`."""

from __future__ import annotations

import io
import signal
import sys
from types import FrameType

from trunkline.errors import MissingExtra

INTERRUPTED = 130
TERMINATED = 128 + signal.SIGTERM


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
    terminated = False

    def terminate(number: int, frame: FrameType | None) -> None:
        """SIGTERM ends a command as Ctrl-C does, with its cleanup, also where Ctrl-C is ignored."""
        nonlocal terminated
        terminated = True
        on_interrupt = signal.getsignal(signal.SIGINT)
        if not callable(on_interrupt):
            raise KeyboardInterrupt
        on_interrupt(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, terminate)
    try:
        from trunkline.cli.main import run

        code = run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(TERMINATED if terminated and code == INTERRUPTED else code)
