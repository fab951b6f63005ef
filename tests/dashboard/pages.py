"""`trunkline page` in its own process, for tests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.cli.commands import DEADLINE_S, environment

PROGRAM = (sys.executable, "-c", "from trunkline.cli import main; main()")
TOKEN = "a token for tests"


class RunningPage(NamedTuple):
    link: str
    """With the token."""
    address: str
    """Without it, and with a slash at the end."""
    process: subprocess.Popen[bytes]

    def at(self, path: str) -> str:
        return self.address + path.lstrip("/")


@contextlib.contextmanager
def page(*words: str, **variables: str) -> Iterator[RunningPage]:
    """It serves when the block begins, on a free port, and must end without errors."""
    command = [*PROGRAM, "page", "--json", "--port", "0", *words]
    given = environment(**{"TRUNKLINE_PAGE_TOKEN": TOKEN, **variables})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1].decode()
        told = json.loads(line)
        yield RunningPage(told["page"], told["address"], process)
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err.decode()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
