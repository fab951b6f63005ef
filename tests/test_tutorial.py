"""The tutorial is correct: its blocks are saved and typed as a reader does, and the terminals show the same output."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs/tutorial.md"
BLOCK = re.compile(r'^```(?P<kind>\w+) title="(?P<title>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
NAMES = re.compile(r"[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}|(?<=process )\d+|unix://\S+?(?=[\s\";]|$)")
"""What is different in each run, and is used again further down the page: ids, numbers of processes, the socket."""
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3}Z?")
DEADLINE_S = 120.0
COMMAND = "import sys; from trunkline.cli import main; sys.exit(main())"
# The parent of the tests may ignore SIGINT; a terminal does not.
PROGRAM = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Terminal:
    """Runs one command at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._text = b""

    def type(self, line: str) -> None:
        """Start a command, after the previous one has ended."""
        program, *words = shlex.split(line)
        self.wait()
        if program == "kill":
            os.kill(int(words[-1]), signal.SIGKILL)
            return
        command = {"python": ("-c", PROGRAM, *words), "trunkline": ("-c", COMMAND, *words)}.get(program)
        environment = {**os.environ, "TRUNKLINE_RUNTIME": str(self._folder / "run"), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, *command] if command else [program, *words],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def read(self) -> str:
        """The next line that is not empty."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while True:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                if line.strip():
                    return line.decode()
                continue
            ready, _, _ = select.select([self._process.stdout], [], [], deadline - time.monotonic())
            assert ready, f"nothing came in {DEADLINE_S} s"
            more = os.read(self._process.stdout.fileno(), 65536)
            assert more, f"it ended with {self._process.wait()}: {self._text.decode()}"
            self._text += more

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self.wait()

    def wait(self) -> None:
        """Until the command has ended. It must print nothing that the page does not show."""
        if self._process is not None:
            rest, _ = self._process.communicate(timeout=DEADLINE_S)
            assert (self._text + rest).strip() == b"", (self._text + rest).decode()
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


class Reader:
    """Follows the steps of the page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._terminals: dict[str, Terminal] = {}
        self._names: dict[str, str] = {}

    def follow(self, block: re.Match[str]) -> None:
        kind, title, text = block["kind"], block["title"], block["text"]
        if kind == "python":
            (self._folder / title).write_text(text)
            return
        terminal = self._terminals.setdefault(title, Terminal(self._folder))
        for line in text.splitlines():
            if line == "^C":
                terminal.interrupt()
            elif kind == "sh" or line.startswith("$ "):
                terminal.type(self.here(line.removeprefix("$ ")))
            else:
                self.compare(line, terminal.read())

    def compare(self, shown: str, got: str) -> None:
        """The two lines are equal, except for times, spaces and names, which are remembered."""
        for there, here in zip(NAMES.findall(shown), NAMES.findall(got), strict=True):
            assert self._names.setdefault(there, here) == here
        assert plain(got) == plain(self.here(shown))

    def here(self, text: str) -> str:
        for there, here in self._names.items():
            text = re.sub(rf"(?<![\w-]){re.escape(there)}(?![\w-])", here, text)
        return text

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.close()


def plain(line: str) -> str:
    return " ".join(TIME.sub("TIME", line).split())


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        somebody = Reader(tmp_path)
        stack.callback(somebody.close)
        yield somebody


@pytest.mark.slow
def test_each_step_shows_what_the_page_shows(reader: Reader) -> None:
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert len(blocks) >= 15
    for block in blocks:
        reader.follow(block)


def test_every_step_in_a_terminal_is_followed() -> None:
    text = PAGE.read_text()
    assert text.count("```console") + text.count("```python") == sum(
        block["kind"] in ("console", "python") for block in BLOCK.finditer(text)
    )
