"""A process that is a fork behaves as one that is new."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import warm

NEW: Any = warm.Popen.__base__
KINDS: list[Any] = [NEW, warm.Popen]


@pytest.mark.parametrize("kind", KINDS, ids=["new", "fork"])
@pytest.mark.parametrize(
    ("code", "ends"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("raise ValueError", 1), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_how_it_ends(kind: Any, code: str, ends: int) -> None:
    with kind([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ends
    assert ("ValueError" in errors) == ("ValueError" in code)


SEEN = """
import os, sys, warnings
print(sys.argv[1:], os.getcwd(), os.environ.get("ITS_OWN"), os.getppid(), sys.stdin.read())
print("error", file=sys.stderr)
try:
    warnings.warn("one")
except UserWarning:
    print("raised")
"""


@pytest.mark.parametrize("kind", KINDS, ids=["new", "fork"])
def test_what_it_sees(kind: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "ITS_OWN": "x"}
    command = [sys.executable, "-W", "error", "-c", SEEN, "a", "b"]
    with kind(command, cwd=tmp_path, env=environment, text=True, **options) as process:
        out, errors = process.communicate("given", timeout=60)
    assert out == f"['a', 'b'] {tmp_path} x {os.getpid()} given\nraised\n"
    assert errors == "error\n"


@pytest.mark.parametrize("kind", KINDS, ids=["new", "fork"])
def test_signals(kind: Any) -> None:
    code = "import time; print('there', flush=True); time.sleep(60)"
    with kind([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"there\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_two_forks_have_not_the_same_random_numbers() -> None:
    code = "import random, trunkline as tl, uuid_utils; print(random.random(), uuid_utils.uuid7())"

    def drawn() -> list[str]:
        with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            return str(process.communicate(timeout=60)[0]).split()

    first, second = drawn(), drawn()
    assert first[0] != second[0]
    # Below the time: what is random.
    assert first[1][-12:] != second[1][-12:]


@pytest.mark.parametrize("kind", KINDS, ids=["new", "fork"])
def test_a_session_of_its_own_is_there_at_once(kind: Any) -> None:
    """The starter of a process may ask for its group then, and later send signals to all of that group."""
    with kind([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        assert (os.getsid(process.pid), os.getpgid(process.pid)) == (process.pid, process.pid)
        process.kill()


@pytest.mark.parametrize("options", [["-I"], ["-W", "ignore"], ["-u", "-O"], list(warm.NEW_PYTHON[1:])])
def test_other_options_of_python_make_a_new_process(options: list[str]) -> None:
    said = subprocess.check_output([sys.executable, *options, "-c", "import sys; print('trunkline' in sys.modules)"])
    assert said == b"False\n"
    said = subprocess.check_output([sys.executable, "-c", "import sys; print('trunkline' in sys.modules)"])
    assert said == b"True\n"


def test_what_a_new_process_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        subprocess.Popen([sys.executable, "-c", "pass"], cwd=tmp_path / "gone")


def test_a_program_begins_when_orphans_are_not_adopted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the orphan of a program that forks and ends at once would be a child of the test."""
    output, theirs = os.pipe()
    early: list[list[int]] = []
    adopting = warm._adopting

    @contextmanager
    def looking() -> Iterator[None]:
        with adopting():
            yield
            early.append(select.select([output], [], [], 0.2)[0])

    monkeypatch.setattr(warm, "_adopting", looking)
    with warm.Popen([sys.executable, "-c", "print('begun')"], stdout=theirs):
        os.close(theirs)
    with open(output) as lines:
        assert lines.read() == "begun\n"
    assert early == [[]]
