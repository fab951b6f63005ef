"""A hub in its own process: started, killed, frozen, and started again at the same address."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.stopped import stop

READY_S = 90.0


class Up:
    """`trunkline up`, on a socket in `folder`; with a journal there, too, if it is to be durable.

    `inside` is a command that runs it elsewhere, as in a network namespace.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = False,
        heartbeat_s: float = 5.0,
        config: str = "",
        inside: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self.address = f"unix://{folder / 'hub.sock'}"
        self.journal = folder / "journal"
        settings = folder / "hub.toml"
        text = f"[hub]\nheartbeat_s = {heartbeat_s}\n{config}\n"
        if durable:
            text += f'[hub.journal]\ndirectory = "{self.journal}"\nsync = "system"\n'
        settings.write_text(text)
        program = "import sys; from trunkline.cli import main; sys.exit(main())"
        self._command = [*inside, sys.executable, "-c", program, "up", "--json", "--listen", self.address]
        self._command += ["--config", str(settings)]
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return when it listens."""
        self._starts += 1
        with (self._folder / f"hub-{self._starts}.log").open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the hub ended with {self._process.wait(READY_S)}: {self.log()}"
        assert json.loads(line)["listening"] == [self.address]

    def log(self) -> str:
        """Its standard error, over all its runs."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("hub-*.log")))

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._reap()

    def end(self) -> int:
        """Ask it to end. Returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(READY_S)
        self._process.stdout.close()
        self._process = None
        return code

    def freeze(self) -> None:
        stop(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


@contextlib.contextmanager
def up(folder: Path, *, durable: bool = False, heartbeat_s: float = 5.0, config: str = "") -> Iterator[Up]:
    """A running hub, which ends with the block."""
    hub = Up(folder, durable=durable, heartbeat_s=heartbeat_s, config=config)
    hub.start()
    try:
        yield hub
    finally:
        if hub._process is not None:
            with contextlib.suppress(ProcessLookupError):
                hub.thaw()
            hub.kill()
