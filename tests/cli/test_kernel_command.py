"""`trunkline kernel`, used by a newcomer: run a notebook, watch a kernel, share a kernel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

import trunkline as tl
from tests.cli.commands import DEADLINE_S, TRUNKLINE, environment, interrupt
from trunkline.jupyter import BlockingKernel, join, start_kernel_blocking


@pytest.fixture(autouse=True)
def own_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def call(*words: object) -> subprocess.CompletedProcess[str]:
    command = [*TRUNKLINE, "kernel", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment())


def written(place: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), str(place))
    return place


def outputs(place: Path) -> list[list[Any]]:
    return [cell.outputs for cell in nbformat.read(str(place), as_version=4).cells]


def test_a_notebook_is_run(tmp_path: Path) -> None:
    notebook = written(tmp_path / "n.ipynb", "import os; print(os.getcwd())", "6 * 7")
    target = tmp_path / "done.ipynb"
    ran = call("run", notebook, "-o", target)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"2 cells executed: {target}\n", "")
    assert outputs(target)[0][0].text == f"{tmp_path}\n"
    assert outputs(target)[1][0]["data"]["text/plain"] == "42"
    assert outputs(notebook) == [[], []]
    ran = call("run", notebook, "--json")
    told = json.loads(ran.stdout)
    assert (told["ok"], told["executed"], told["failed"]) == (True, 2, None)
    assert outputs(notebook)[1][0]["data"]["text/plain"] == "42"


def test_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    notebook = written(tmp_path / "n.ipynb", "1", "1/0", "2")
    ran = call("run", notebook)
    assert ran.returncode == 1
    assert "ZeroDivisionError" in ran.stderr
    assert "\x1b" not in ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("error: cell 2: ZeroDivisionError: division by zero; 1 cell after it not executed.")
    assert outputs(notebook)[1][0].ename == "ZeroDivisionError"
    ran = call("run", notebook, "--allow-errors")
    assert ran.returncode == 0
    told = json.loads(call("run", notebook, "--json").stdout)
    assert (told["ok"], told["failed"], told["skipped"]) == (False, 1, 1)


@pytest.mark.long
def test_what_cannot_be_run_says_why(tmp_path: Path) -> None:
    notebook = written(tmp_path / "n.ipynb", "1")
    missing = call("run", notebook, "--kernel", "cobol")
    assert missing.returncode == 1
    assert "the kernel 'cobol' is not installed" in missing.stderr
    assert call("run", tmp_path / "no.ipynb").returncode == 2
    slow = written(tmp_path / "slow.ipynb", "import time; time.sleep(60)")
    late = call("run", slow, "--timeout", "0.5")
    assert late.returncode == 1
    assert "cell 1" in late.stderr
    dying = written(
        tmp_path / "dying.ipynb", "print('last', flush=True); import os, time; time.sleep(0.1); os.kill(os.getpid(), 9)"
    )
    died = call("run", dying)
    assert died.returncode == 1
    assert "died: its process was ended by SIGKILL" in died.stderr
    assert outputs(dying)[0][0].text == "last\n"


@pytest.mark.long
def test_ctrl_c_keeps_what_came(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    notebook = written(tmp_path / "n.ipynb", "'kept'", f"open({str(mark)!r}, 'w').close(); import time; time.sleep(60)")
    command = [*TRUNKLINE, "kernel", "run", str(notebook)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    try:
        while not mark.exists():
            assert process.poll() is None
        ended = interrupt(process)
    finally:
        process.kill()
        process.communicate()
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert outputs(notebook)[0][0]["data"]["text/plain"] == "'kept'"


DENO = Path(sys.executable).with_name("deno")
ENDLESS = "await Deno.writeTextFile({mark}, String(Deno.pid)); await new Promise(done => setTimeout(done, 600_000))"


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["starting", "running"])
def test_sigterm_ends_a_kernel_of_another_language_and_keeps_what_came(tmp_path: Path, phase: str) -> None:
    place, mark = tmp_path / "jupyter" / "kernels" / "deno", tmp_path / "mark"
    place.mkdir(parents=True)
    # `starting`: a kernel that never answers. `running`: in the middle of a cell, which no shutdown request ends.
    script = f"echo $$ > {mark}; exec sleep 600" if phase == "starting" else f"exec {DENO} jupyter --kernel --conn $0"
    argv = ["sh", "-c", script, "{connection_file}"]
    (place / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Deno", "language": "typescript"}))
    notebook = written(tmp_path / "n.ipynb", "'kept'", ENDLESS.format(mark=json.dumps(str(mark))))
    own = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "DENO_DIR": str(tmp_path / "deno"), "DENO_NO_UPDATE_CHECK": "1"}
    command = [*TRUNKLINE, "kernel", "run", str(notebook), "--kernel", "deno"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**own))
    try:
        while not mark.exists() or not mark.read_text().strip():
            assert process.poll() is None
        pid = int(mark.read_text())
        process.send_signal(signal.SIGTERM)
        # Impatient supervisors send it again.
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 143
    assert b"Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    if phase == "running":
        assert "kept" in outputs(notebook)[0][0]["data"]["text/plain"]


def test_options_of_a_run(tmp_path: Path) -> None:
    notebook = written(tmp_path / "n.ipynb", "1/0", "(rate, name)")
    ran = call("run", notebook, "--allow-error", "ZeroDivisionError", "-p", "rate=0.5", "-p", "name=a text", "--json")
    assert json.loads(ran.stdout)["ok"]
    assert outputs(notebook)[2][0]["data"]["text/plain"] == "(0.5, 'a text')"
    wrong = call("run", notebook, "-p", "rate")
    assert (wrong.returncode, "write it as name=value" in wrong.stderr) == (2, True)


def shown(kernel: BlockingKernel, count: int, code: str) -> set[str]:
    """What `kernel watch` shows of each message, without when and whose it was, while the code is run."""
    command = [*TRUNKLINE, "kernel", "watch", "mine", "-n", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as watching:
        while watching.poll() is None:
            kernel.run(code)
        assert watching.stdout is not None
        return {"  ".join(line.split("  ")[3:]).rstrip() for line in watching.stdout}


def test_a_kernel_is_listed_and_watched(tmp_path: Path) -> None:
    assert "no connection files" in call("list").stderr
    with start_kernel_blocking() as kernel:
        (listed,) = [json.loads(line) for line in call("list", "--json").stdout.splitlines()]
        assert (listed["kernel"], listed["connection_file"]) == (kernel.id, str(kernel.connection_file))
        path = tmp_path / "runtime" / "kernel-mine.json"
        path.write_bytes(Path(str(kernel.connection_file)).read_bytes())
        assert "mine" in call("list").stdout
        command = [*TRUNKLINE, "kernel", "watch", "mine", "--json", "-n", "4"]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        try:
            while watching.poll() is None:
                kernel.run("print('seen')")
            assert watching.stdout is not None
            kinds = [json.loads(line)["header"]["msg_type"] for line in watching.stdout]
        finally:
            watching.kill()
            watching.communicate()
        assert len(kinds) == 4
        assert set(kinds) <= {"status", "execute_input", "stream", "kernel_info_reply"}
        assert shown(kernel, 60, "print('seen'); 6 * 7") >= {
            "status  busy",
            "execute_input  print('seen'); 6 * 7",
            "stream  stdout: seen⏎",
            "execute_result  42",
        }
        assert "error  ZeroDivisionError: division by zero" in shown(kernel, 20, "1 / 0")
    gone = call("watch", "nothing")
    assert gone.returncode == 1
    assert "no connection file nothing in" in gone.stderr


def test_a_kernel_is_shared_on_a_hub_until_sigterm(tmp_path: Path) -> None:
    place = f"unix://{tmp_path}/hub.sock"
    listening = [*TRUNKLINE, "up", "--listen", place, "--json"]
    hub = subprocess.Popen(listening, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert hub.stdout is not None
    assert hub.stdout.readline()
    command = [*TRUNKLINE, "kernel", "share", "--start", "python3", "--hub", place]
    sharing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    try:
        assert sharing.stdout is not None
        kernel_id = sharing.stdout.readline().decode().strip()

        async def use() -> str | None:
            async with tl.connect(place, name="agent") as bus, join(bus, kernel_id) as kernel:
                return (await kernel.run("import os; os.getpid()")).text

        pid = int(asyncio.run(use()) or 0)
        os.kill(pid, 0)
        assert interrupt(sharing, signal.SIGTERM).code == 143
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        for process in (sharing, hub):
            process.kill()
            process.communicate()
