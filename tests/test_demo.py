"""`make demo` as its user sees it: its output, its end, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trunkline as tl
from examples.demo.narrator import Narrator, Waiting
from examples.demo.output import NotOurs, Output
from examples.demo.processes import Processes
from examples.demo.story import Story

ROOT = Path(__file__).parent.parent
DEADLINE_S = 600

# What must be in the output, in this order.
SHOWS = [
    "1. A hub starts, with a journal",
    "  ok  6 agents are connected, and a kernel is shared",
    "  ok  every order has one invoice, of the right amount",
    "  ok  the mean of 27 invoices is 16.22 euros",
    '  ok  the hub keeps its cause: "LookupError: no rate for XYZ"',
    "  ok  31 orders were dropped, by its own count",
    "  ok  billing-1 got that order, and billed it",
    "  ok  order 41  billing    dead: handler failed: LookupError: no rate for XYZ",
    "  ok  all 61 orders are billed now, each once",
    "8. A camera sends pictures through shared memory",
    "  ok  the viewer saw 40 pictures, and ended by signal 9",
    "  ok  none is missing, and none is torn",
    "9. Spark makes tables of it all, and a report",
    "    dashboard   dropped         41",
    "  ok  the agents say the same",
    "  ok  the report is written",
    "    analyst          61        41       20       0       0    0         0",
]


def test_a_heading_is_underlined_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator()
    for title in ("first", *[""] * 8, "tenth"):
        narrator.chapter(title)
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [len(line) for line in lines[::2]] == [len(line) for line in lines[1::2]]


def test_a_pipe_gets_a_line_for_each_step_and_one_every_ten_seconds() -> None:
    waiting = Waiting("step 1")
    assert [waiting.is_due() for _ in range(7)] == [True, False, False, False, False, True, False]
    waiting.what = "step 2"
    assert [waiting.is_due() for _ in range(2)] == [True, False]


class Demo:
    """The demo as a process, in a directory, with its own home and temporary files."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.mark = f"MARK_OF_A_TESTED_DEMO={uuid.uuid4()}"
        self.work, self.home = folder / "work", folder / "home"
        for each in (self.work, self.home):
            each.mkdir(exist_ok=True)
        # Sockets are made there, and the path of a socket has 107 characters at most.
        self.temporary = Path(tempfile.mkdtemp(prefix="demo-"))
        name, value = self.mark.split("=")
        environment = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT), name: value}
        unset = ("JAVA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TRUNKLINE_CACHE")
        self.process = subprocess.Popen(
            [sys.executable, *(command or ("-m", "examples.demo"))],
            cwd=self.work,
            env={**{key: each for key, each in os.environ.items() if key not in unset}, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, text: str) -> None:
        """Read until a line that has this text in it."""
        assert self.process.stdout is not None
        assert any(text in line for line in self.process.stdout), f"the demo ended before it said {text!r}"

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err

    def left(self) -> list[str]:
        """Its leftovers: processes and unexpected files."""
        processes = [
            f"process {path.parent.name}" for path in Path("/proc").glob("[0-9]*/environ") if self._is_ours(path)
        ]
        files = [path for folder in (self.home, self.temporary) for path in folder.rglob("*") if path.is_file()]
        # Matplotlib keeps its list of fonts for the next program.
        return [*processes, *(str(path) for path in files if path.parent.name != "matplotlib")]

    def _is_ours(self, environ: Path) -> bool:
        try:
            return self.mark.encode() in environ.read_bytes()
        except OSError:
            return False


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*command: str) -> Demo:
        started.append(Demo(tmp_path, *command))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.end()
        shutil.rmtree(each.temporary)


def test_the_demo_tells_its_story_and_leaves_a_report(demo: Callable[..., Demo], tmp_path: Path) -> None:
    """Also if an older one has left its output."""
    old = tmp_path / "work" / "demo-output"
    old.parent.mkdir()
    before = Output(old)
    before.report.write_text("of an older demo")
    (before.folder / "of-old").write_text("")
    before.keep()
    told = demo()
    code, out, err = told.end()
    assert (code, err) == (0, "")
    lines = iter(out.splitlines())
    for wanted in SHOWS:
        assert wanted in lines, f"the demo does not show {wanted!r}, or not after the line before"
    story = out.partition("See for yourself")[0].splitlines()
    assert max(map(len, story)) <= 80
    assert out.isascii()
    assert told.left() == []
    assert [path.name for path in told.work.iterdir()] == ["demo-output"]
    assert sorted(path.name for path in old.iterdir()) == ["README.txt", "journal", "logs", "report.html"]
    assert "<html" in (old / "report.html").read_text()
    # What it says to try works where the directory is now.
    explain = out.splitlines()[-3].strip()
    trunkline = Path(sys.executable).with_name("trunkline")
    for command in (
        ["journal", "explain", "demo-output/journal", explain],
        ["pipeline", "status", "demo-output/journal"],
    ):
        ran = subprocess.run([trunkline, *command], cwd=told.work, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "1. A hub starts"),
        pytest.param(signal.SIGTERM, "2. Agents", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, "3. A handler fails", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "5. A worker is killed", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "9. Spark makes tables", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "waiting for Spark, step", marks=pytest.mark.long),
    ],
)
def test_interrupted_it_leaves_nothing(demo: Callable[..., Demo], number: signal.Signals, line: str) -> None:
    told = demo()
    told.until(line)
    told.process.send_signal(number)
    code, _, err = told.end()
    assert (code, err) == (
        128 + number,
        "\nInterrupted: all processes are being ended ...\nAll have ended, and nothing was kept.\n",
    )
    assert told.left() == []
    assert list(told.work.iterdir()) == []


KEPT = (
    "import asyncio, sys; from pathlib import Path; import examples.demo.__main__ as demo\n"
    "async def told(narrator, output): output.journal.mkdir(); output.keep()\n"
    "{tell}"
    "sys.exit(asyncio.run(demo.main(Path('demo-output'), keep=True)))"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "tell"),
    [
        pytest.param(signal.SIGINT, "demo.tell = told\n", id="SIGINT"),
        pytest.param(signal.SIGTERM, "demo.tell = told\n", id="SIGTERM", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "", id="after the story", marks=pytest.mark.long),
    ],
)
def test_a_shop_that_goes_on_has_a_page_and_traffic_until_it_is_ended(
    demo: Callable[..., Demo], number: signal.Signals, tell: str
) -> None:
    """`make demo KEEP=1`, with or without the story."""
    told = demo("-c", KEPT.format(tell=tell))
    told.until("The shop goes on")
    assert told.process.stdout is not None
    page = next(line.split()[0] for line in told.process.stdout if "open it in a browser" in line)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the link has a token for it
    with browser.open(page, timeout=DEADLINE_S) as answer:
        assert answer.status == 200
    address = next(line.split()[-1] for line in told.process.stdout if " top --hub " in line)
    with tl.connect_blocking(address, name="guest") as bus, bus.subscribe("invoices.sent", name="guest") as invoices:
        assert invoices.recv(timeout_s=DEADLINE_S) is not None
    told.process.send_signal(number)
    code, out, err = told.end()
    assert (code, out, err) == (
        0,
        "",
        "\nInterrupted: all processes are being ended ...\n"
        "All have ended. The report, the journal and the logs are in demo-output.\n",
    )
    assert told.left() == []
    assert [path.name for path in told.work.iterdir()] == ["demo-output"]


@pytest.mark.long
def test_a_false_claim_ends_it_with_1(demo: Callable[..., Demo]) -> None:
    """The prices differ from what the story expects, so the first claim about amounts is false."""
    told = demo(
        "-c",
        "import runpy, examples.demo.story as story; story.price = lambda number: 1.0;"
        "runpy.run_module('examples.demo', run_name='__main__')",
    )
    code, out, err = told.end()
    assert code == 1, err
    assert "ok  40 orders are in the journal" in out, err
    assert "FALSE: every order has one invoice, of the right amount" in err
    assert told.left() == []
    assert (told.work / "demo-output" / "journal").is_dir()


def test_the_camera_of_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its chapter: it needs no hub, no kernel and no Spark."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    async def tell() -> None:
        async with Processes(tmp_path) as processes:
            await Story(Narrator(), processes, None).camera()  # type: ignore[arg-type]  # it writes nothing

    asyncio.run(tell())
    said = capsys.readouterr().out
    assert "  ok  none is missing, and none is torn" in said.splitlines()
    assert said.count("  ok  ") == 5


def test_answers_of_several_threads_are_lines_of_their_own() -> None:
    """The pipeline makes tables in several threads, and each reports it."""
    many = (
        "from concurrent.futures import ThreadPoolExecutor as Pool; from examples.demo.spark import answer\n"
        "with Pool(8) as pool: list(pool.map(lambda n: answer(table='t', done=n), range(5000)))"
    )
    ran = subprocess.run([sys.executable, "-u", "-c", many], cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(json.loads(line)["done"] for line in ran.stdout.splitlines()) == list(range(5000))


def test_it_does_not_replace_a_directory_of_somebody_else(demo: Callable[..., Demo], tmp_path: Path) -> None:
    mine = tmp_path / "work" / "demo-output" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("")
    code, out, err = demo().end()
    assert (code, out) == (1, "")
    assert "this demo did not make it" in err
    assert mine.exists()


def test_of_two_at_the_same_time_the_last_one_stays(tmp_path: Path) -> None:
    place = tmp_path / "demo-output"
    first, second = Output(place), Output(place)
    first.report.write_text("first")
    second.report.write_text("second")
    for each in (first, second):
        each.keep()
        each.discard()
    assert (place / "report.html").read_text() == "second"
    assert list(tmp_path.iterdir()) == [place]
    (place / "README.txt").unlink()
    with pytest.raises(NotOurs, match="move it away"):
        Output(place)
