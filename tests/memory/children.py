"""Programs that tests run in their own processes: they end their process, or need two of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# For every module that imports this one.
pytest.importorskip("iceoryx2", reason="shared memory needs the extra `memory`")

PREAMBLE = """
import os, sys, time, signal, gc
import numpy as np
import trunkline as tl
from trunkline import memory
def say(*what):
    print(*what, flush=True)
def wait():
    sys.stdin.readline()
"""


def program(code: str) -> list[str]:
    return [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)]


def run(code: str, *, expect: int = 0, timeout_s: float = 60) -> str:
    """The output of a program. It must end with `expect`: a crash has the negative number of its signal."""
    done = subprocess.run(program(code), capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == expect, f"ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[str]]:
    """An interactive one, which is killed at the end."""
    process = subprocess.Popen(program(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    """Let its `wait` return."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def let_end(process: subprocess.Popen[str]) -> None:
    """Let it close its open objects, before it is killed."""
    process.communicate(timeout=60)
    assert process.returncode == 0
