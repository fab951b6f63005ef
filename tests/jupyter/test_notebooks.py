"""Notebooks, run through our client, as nbclient would have run them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import trunkline as tl
from tests.jupyter.real import run
from trunkline.jupyter import NotebookRun, read_notebook, run_notebook, start_kernel, write_notebook
from trunkline.jupyter.notebook import NotebookProgress
from trunkline.jupyter.widgets import MIME


def book(*sources: str, **tags: list[str]) -> Any:
    cells = [nbformat.v4.new_markdown_cell("# A title"), *(nbformat.v4.new_code_cell(source) for source in sources)]
    for place, names in tags.items():
        cells[int(place.removeprefix("cell"))].metadata["tags"] = names
    return nbformat.v4.new_notebook(cells=cells)


def execute(notebook: Any, **options: Any) -> NotebookRun:
    async def main() -> NotebookRun:
        async with start_kernel() as kernel:
            return await run_notebook(kernel, notebook, **options)

    return run(main())


def plain(notebook: Any) -> list[Any]:
    """Outputs, without what differs from run to run."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            shown = {key: value for key, value in output.items() if key not in ("metadata", "traceback")}
            found.append(shown)
    return found


VARIED = (
    "print('hello')",
    "import sys; print('oh', file=sys.stderr); print('and out')",
    "x = 41",
    "x + 1",
    "from IPython.display import display, clear_output, HTML; display(HTML('<b>x</b>')); display('two')",
    "handle = display('before', display_id='shown')",
    "handle.update('after')",
    "for n in range(3):\n    clear_output(wait=True)\n    print('step', n)",
    "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()",
    "",
    "for n in range(300): print(n, flush=True)",
)


def test_as_nbclient_would_have_done_it() -> None:
    ours, theirs = book(*VARIED), book(*VARIED)
    seen: list[NotebookProgress] = []
    done = execute(ours, progress=seen.append)
    assert done.ok
    assert [(each.done, each.total) for each in seen] == [(n, 10) for n in range(1, 11)]
    asyncio.run(NotebookClient(theirs, kernel_name="python3", coalesce_streams=True).async_execute())
    assert plain(ours) == plain(theirs)
    counts = [[cell.get("execution_count") for cell in each.cells] for each in (ours, theirs)]
    assert counts[0] == counts[1]
    nbformat.validate(ours)
    assert set(ours.cells[1].metadata["execution"]) == set(theirs.cells[1].metadata["execution"])
    assert ours.metadata["language_info"]["name"] == "python"


def test_a_cell_that_fails_ends_it() -> None:
    notebook = book("1", "1/0", "'never'")
    done = execute(notebook)
    assert (done.ok, done.failed, done.skipped) == (False, 2, 1)
    assert notebook.cells[2].outputs[0].ename == "ZeroDivisionError"
    assert notebook.cells[3].outputs == []


def test_errors_may_be_allowed_for_all_or_for_one() -> None:
    notebook = book("1/0", "'after'")
    assert execute(notebook, allow_errors=True).ok
    assert notebook.cells[2].outputs[0]["data"]["text/plain"] == "'after'"
    tagged = book("1/0", "'after'", "'not this'", cell1=["raises-exception"], cell3=["skip-execution"])
    assert execute(tagged).ok
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


def test_late_output_is_where_the_kernel_says() -> None:
    thread = (
        "import threading\nnext_cell = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (next_cell.wait(), print('late', flush=True)))\nthread.start()"
    )
    notebook = book(thread, "next_cell.set(); thread.join(); print('second')")
    assert execute(notebook).ok
    texts = "".join(output.text for cell in notebook.cells[1:] for output in cell.outputs)
    assert texts == "late\nsecond\n"


def test_widgets_are_kept() -> None:
    notebook = book("import ipywidgets; slider = ipywidgets.IntSlider(value=3); slider", "slider.value = 8")
    assert execute(notebook).ok
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
    with pytest.raises(tl.UsageError, match="is no notebook"):
        read_notebook(tmp_path / "bad.ipynb")
    with pytest.raises(tl.UsageError, match="cannot write"):
        write_notebook(book("1"), tmp_path / "no" / "n.ipynb")
