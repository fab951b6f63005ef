"""The command line: `trunkline`."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from types import FrameType

from trunkline.errors import MissingExtra
from trunkline.program import INTERRUPTED as INTERRUPTED

TERMINATED = 128 + signal.SIGTERM


class Termination:
    """Records whether SIGTERM was received, and what SIGTERM cancels in a command that has its own cleanup."""

    received = False
    cancel: Callable[[], object] | None = None
    """Called on SIGTERM. If it is None, SIGTERM acts like Ctrl-C."""


TERMINATION = Termination()
"""A single instance, because signals are delivered to the process."""


def main() -> None:
    try:
        import typer  # noqa: F401  # checks that it is installed
    except ImportError:
        print(MissingExtra("cli", "the command line"), file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show is escaped, instead of raising an error.
            stream.reconfigure(errors="backslashreplace")

    def terminate(number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: end the command and run its cleanup, as Ctrl-C does. This also works where Ctrl-C is ignored.

        Only the first signal has an effect: a second one does not interrupt the cleanup.
        """
        if TERMINATION.received:
            return
        TERMINATION.received = True
        if TERMINATION.cancel is not None:
            TERMINATION.cancel()
            return
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
    sys.exit(TERMINATED if TERMINATION.received and code == INTERRUPTED else code)
