"""Notebooks give the same results through our client as with nbclient."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import nbformat
import pytest

import trunkline as tl
from tests.jupyter.notebooks import VARIED, Execute, book, execute, plain, recorded
from tests.jupyter.real import run
from trunkline.jupyter import read_notebook, run_notebook, start_kernel, write_notebook
from trunkline.jupyter.notebook import NotebookProgress
from trunkline.jupyter.widgets import MIME


def test_as_nbclient_would_have_done_it() -> None:
    ours = book(*VARIED)
    seen: list[NotebookProgress] = []
    done = execute(ours, progress=seen.append)
    assert done.ok
    assert [(each.done, each.total) for each in seen] == [(n, 10) for n in range(1, 11)]
    theirs = recorded()
    assert plain(ours) == theirs["varied"]
    assert [cell.get("execution_count") for cell in ours.cells] == theirs["counts"]
    nbformat.validate(ours)
    assert sorted(ours.cells[1].metadata["execution"]) == theirs["timing"]
    assert ours.metadata["language_info"]["name"] == "python"


def test_a_cell_that_fails_ends_it(execute_here: Execute) -> None:
    notebook = book("1", "1/0", "'never'")
    done = execute_here(notebook)
    assert (done.ok, done.failed, done.skipped) == (False, 2, 1)
    assert notebook.cells[2].outputs[0].ename == "ZeroDivisionError"
    assert notebook.cells[3].outputs == []


def test_errors_may_be_allowed_for_all_or_for_one(execute_here: Execute) -> None:
    notebook = book("1/0", "'after'")
    assert execute_here(notebook, allow_errors=True).ok
    assert notebook.cells[2].outputs[0]["data"]["text/plain"] == "'after'"
    tagged = book("1/0", "'after'", "'not this'", cell1=["raises-exception"], cell3=["skip-execution"])
    assert execute_here(tagged).ok
    assert tagged.cells[2].outputs[0]["data"]["text/plain"] == "'after'"
    assert tagged.cells[3].outputs == []


def test_a_cell_that_takes_too_long_is_interrupted() -> None:
    notebook = book("print('begun', flush=True)\nimport time; time.sleep(60)", "'never'")
    done = execute(notebook, timeout_s=3.0)
    assert (done.failed, done.skipped) == (1, 1)
    outputs = notebook.cells[1].outputs
    assert outputs[0].text == "begun\n"
    assert outputs[1].ename == "KeyboardInterrupt"


def test_a_kernel_that_dies_leaves_what_came() -> None:
    notebook = book("'kept'", "print('last words', flush=True)\nimport time; time.sleep(60)")

    async def main() -> None:
        async with start_kernel() as kernel, kernel.subscribe("kernel.*.iopub.stream") as printed:
            pid = int((await kernel.run("import os; os.getpid()")).text or "")
            running = asyncio.create_task(run_notebook(kernel, notebook))
            assert await printed.recv() is not None
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(tl.KernelDied):
                await running

    run(main())
    assert notebook.cells[1].outputs[0]["data"]["text/plain"] == "'kept'"
    assert notebook.cells[2].outputs[0].text == "last words\n"


def test_late_output_is_where_the_kernel_says(execute_here: Execute) -> None:
    thread = (
        "import threading\nnext_cell = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (next_cell.wait(), print('late', flush=True)))\nthread.start()"
    )
    notebook = book(thread, "next_cell.set(); thread.join(); print('second')")
    assert execute_here(notebook).ok
    texts = "".join(output.text for cell in notebook.cells[1:] for output in cell.outputs)
    assert texts == "late\nsecond\n"


def test_widgets_are_kept(execute_here: Execute) -> None:
    notebook = book("import ipywidgets; slider = ipywidgets.IntSlider(value=3); slider", "slider.value = 8")
    assert execute_here(notebook).ok
    states = notebook.metadata["widgets"][MIME]["state"]
    (slider,) = [each for each in states.values() if each["model_name"] == "IntSliderModel"]
    assert slider["state"]["value"] == 8
    nbformat.validate(notebook)


def test_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    write_notebook(book("1"), path)
    assert [file.name for file in tmp_path.iterdir()] == ["n.ipynb"]
    assert read_notebook(path).cells[1].source == "1"
    with pytest.raises(tl.UsageError, match="cannot read"):
        read_notebook(tmp_path / "missing.ipynb")
    (tmp_path / "bad.ipynb").write_text("{}")
    with pytest.raises(tl.UsageError, match="is not a notebook"):
        read_notebook(tmp_path / "bad.ipynb")
    with pytest.raises(tl.UsageError, match="cannot write"):
        write_notebook(book("1"), tmp_path / "no" / "n.ipynb")
