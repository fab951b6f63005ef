"""Starts the programs of `children.py`, kills them, and reads what they had done."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

PROGRAMS = Path(__file__).with_name("children.py")
DEADLINE_S = 150.0

_numbers = itertools.count(1)


class Child:
    """A program in its own process. Its output goes to files, which survive it."""

    def __init__(self, folder: Path, *words: object, within: Sequence[str] = ()) -> None:
        stem = f"{next(_numbers)}-{words[0]}"
        self._said = folder / f"{stem}.out"
        self._complained = folder / f"{stem}.err"
        with self._said.open("wb") as said, self._complained.open("wb") as complained:
            self._process = subprocess.Popen(
                [*within, *command(*words)], stdin=subprocess.PIPE, stdout=said, stderr=complained
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        """Release the waiting processes: everything is imported."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def heard(self, word: str) -> None:
        """Return when it has printed something."""
        for _ in range(int(DEADLINE_S * 100)):
            if any(line[0] == word for line in self.lines()):
                return
            self._lives(0.01)
        raise AssertionError(f"it never said {word!r}: {self.complaints()}")

    def _lives(self, seconds: float) -> None:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError(f"it ended by itself, with {code}: {self.complaints()}")

    def kill_after(self, seconds: float) -> None:
        """Let it run for this time, then kill it in the middle of its work."""
        self._lives(seconds)
        self.kill()

    def close_and_kill_after(self, seconds: float) -> None:
        """Let it end, and kill it while it does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert self._process.wait(seconds) == 0, self.complaints()
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def end(self) -> int:
        """Close its standard input, and wait until it ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(DEADLINE_S)
        self._close()
        return code

    def finish(self) -> None:
        """The same. It must end without errors."""
        assert self.end() == 0, self.complaints()

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)

    def lines(self) -> list[list[str]]:
        """Its output, split into words. An incomplete line does not count."""
        return [line.split(" ", 5) for line in self._said.read_text().split("\n")[:-1]]

    def said(self, word: str) -> list[list[str]]:
        return [line[1:] for line in self.lines() if line[0] == word]

    def errors(self) -> list[dict[str, Any]]:
        return [json.loads(" ".join(words)) for words in self.said("error")]

    def complaints(self) -> str:
        return self._complained.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self.kill()


def command(*words: object) -> list[str]:
    return [sys.executable, "-W", "error", str(PROGRAMS), *map(str, words)]


def mounted(script: str, *then: Sequence[object]) -> list[str]:
    """Before a program, a shell script that mounts a private file system; after it, further programs there.

    Skips the test where that is not allowed.
    """
    if shutil.which("unshare") is None:
        pytest.skip("needs `unshare`, to mount a file system that only the test sees")
    unshare = ["unshare", "--mount", *(() if os.getuid() == 0 else ("--map-root-user",)), "sh", "-c"]
    tried = subprocess.run([*unshare, f"set -e; {script}"], capture_output=True, text=True, timeout=DEADLINE_S)
    if tried.returncode:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.strip()}")
    return [*unshare, "; ".join(["set -e", script, '"$0" "$@"', *(shlex.join(command(*words)) for words in then)])]
