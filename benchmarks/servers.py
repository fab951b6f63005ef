"""Servers, those of peers from PyPI. Each is a process with its own directory; both are removed when the block ends.

The directory is in the system's temporary directory (TMPDIR changes it), on the same disk as that of our side.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import files
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

READY_S = 60.0
POLL_S = 0.005

# Kills the server when standard input ends: when this process closes it, and also when this process is killed.
# The log begins with the process id of the server.
_SERVER = """sh -c 'echo "process $$"; exec "$@" 3<&-' sh "$@" & server=$!"""
_KEEPER = f"exec 3<&0; {_SERVER}; {{ cat <&3; kill -9 $server; }} >/dev/null 2>&1 & wait $server"


class ServerError(RuntimeError):
    """A server ended, or was not ready in time. The text has its output."""


T = TypeVar("T", covariant=True)


class Place(NamedTuple):
    """The address and the process id of a server."""

    address: str
    pid: int


class Server(Generic[T]):
    """A resource of measurements, such as a server or workers. The outermost `running` block starts and ends it."""

    def __init__(self, start: Callable[[Path], AbstractContextManager[T]]) -> None:
        self._start = start
        self._address: T | None = None

    @contextmanager
    def running(self) -> Iterator[T]:
        """Yields its address. A nested block uses the same server."""
        if self._address is not None:
            yield self._address
            return
        with directory() as folder, self._start(folder) as self._address:
            try:
                yield self._address
            finally:
                self._address = None


@contextmanager
def together(*servers: Server[Any]) -> Iterator[None]:
    """Run all of them until the end of the block."""
    with ExitStack() as running:
        for server in servers:
            running.enter_context(server.running())
        yield


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory, removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as name:
        yield Path(name)


def executable(package: str, name: str) -> str:
    """The path of a program of an installed package, found without importing the package."""
    for path in files(package) or ():
        if path.name == name:
            return str(path.locate())
    raise ServerError(f"{package} has no {name}: install what the benchmarks need with pip install '.[bench]'")


@contextmanager
def process(command: Sequence[str], log: Path, ready: str) -> Iterator[re.Match[str]]:
    """Run a process until the end of the block. Yields the match of the expression `ready` in its log.

    It has its own session: Ctrl-C is handled by the measuring process, which then ends the server.
    """
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield _await(keeper, log, re.compile(ready, re.DOTALL))
    finally:
        keeper.communicate()


def pid_of(ready: re.Match[str]) -> int:
    """The process id of the server, from its log."""
    found = re.match(r"process (\d+)\n", ready.string)
    assert found is not None
    return int(found[1])


def _await(keeper: subprocess.Popen[bytes], log: Path, ready: re.Pattern[str]) -> re.Match[str]:
    deadline = time.monotonic() + READY_S
    while True:
        ended = keeper.poll() is not None
        said = log.read_text(encoding="utf-8", errors="replace")
        if ended or time.monotonic() > deadline:
            raise ServerError(f"{'it ended' if ended else f'not ready after {READY_S:g} s'}; it said:\n{said}")
        if found := ready.search(said):
            return found
        time.sleep(POLL_S)
