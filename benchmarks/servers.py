"""Servers, those of others as they come from PyPI: each a process in a directory of its own, gone when the block ends.

The directory is in the system's temporary one (TMPDIR moves it), on the same disk as our side's.
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

# Kills the server when standard input ends: when we close it, and also when we are killed and cannot.
# The log begins with the number of the server's process.
_SERVER = """sh -c 'echo "process $$"; exec "$@" 3<&-' sh "$@" & server=$!"""
_KEEPER = f"exec 3<&0; {_SERVER}; {{ cat <&3; kill -9 $server; }} >/dev/null 2>&1 & wait $server"


class ServerError(RuntimeError):
    """A server ended, or did not get ready; with what it said instead."""


T = TypeVar("T", covariant=True)


class Place(NamedTuple):
    """Where a server is reached, and as which process it runs."""

    address: str
    pid: int


class Server(Generic[T]):
    """What others measure, or measure with. It is started by the outermost `running` block and ends with it."""

    def __init__(self, start: Callable[[Path], AbstractContextManager[T]]) -> None:
        self._start = start
        self._address: T | None = None

    @contextmanager
    def running(self) -> Iterator[T]:
        """Its address. A block inside another one shares its server."""
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
    """All of them, until the end of the block."""
    with ExitStack() as running:
        for server in servers:
            running.enter_context(server.running())
        yield


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as name:
        yield Path(name)


def executable(package: str, name: str) -> str:
    """Where an installed package has put a program; found without importing the package."""
    for path in files(package) or ():
        if path.name == name:
            return str(path.locate())
    raise ServerError(f"{package} has no {name}: install what the benchmarks need with pip install '.[bench]'")


@contextmanager
def process(command: Sequence[str], log: Path, ready: str) -> Iterator[re.Match[str]]:
    """A process until the end of the block; gives what the expression `ready` has found in its log.

    In a session of its own: a Ctrl-C is for the measurement, which then ends the server.
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
    """The process that has said it is ready."""
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
