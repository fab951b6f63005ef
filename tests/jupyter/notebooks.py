"""Notebooks for the tests, how we run them, and the results of nbclient, which are recorded in nbclient.json.

nbclient now and then waits for ever for a kernel that starts slowly, because it loses what comes early. So the suite
compares with a recording, and a long test compares that with nbclient: `python -m tests.jupyter.notebooks` writes it
anew.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.jupyter.real import run
from trunkline.jupyter import Kernel, NotebookRun, attach, run_notebook, start_kernel
from trunkline.jupyter.awaitable_context import AwaitableContext
from trunkline.jupyter.widgets import MIME

Execute = Callable[..., NotebookRun]
"""`execute`, in one kernel for the tests of a module."""

PLACE = Path(__file__).with_name("nbclient.json")

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
CAPTURED = (
    "import ipywidgets as widgets\nfrom IPython.display import clear_output, display\n"
    "output1, output2, outer, inner = (widgets.Output() for _ in range(4))\noutput1",
    "print('hi')\nwith output1:\n    print('in output')",
    "with output1:\n    raise ValueError('shown in the widget')",
    "print('hi2')\nwith output2:\n    print('hello')\n    clear_output(wait=True)\n    display('world')",
    "with inner:\n    print('in inner')\n    with outer:\n        print('in outer')\n    print('also in inner')",
    "[len(each.outputs) for each in (output1, output2, outer, inner)]",
    "with output2:\n    clear_output()",
    "len(output2.outputs)",
)
# On a busy machine a kernel drops output when 1,000 messages wait to be sent: ZeroMQ's limit, which ipykernel keeps.
PROGRESS = (
    "import sys\nfor n in range(300): print(f'\\r{n:4} ' + '#' * (n // 10), end='', flush=True)\n"
    "print()\nprint('done')",
    "import sys\nfor n in range(2):\n    print('out', n, flush=True); print('err', n, file=sys.stderr, flush=True)",
)
HOOKED = ("print(1)", "1/0", "2")
HOOKS = ("notebook_start", "notebook_complete", "notebook_error", "cell_start", "cell_execute", "cell_complete")


def book(*sources: str, **tags: list[str]) -> Any:
    cells = [nbformat.v4.new_markdown_cell("# A title"), *(nbformat.v4.new_code_cell(source) for source in sources)]
    for place, names in tags.items():
        cells[int(place.removeprefix("cell"))].metadata["tags"] = names
    return nbformat.v4.new_notebook(cells=cells)


def execute(notebook: Any, **options: Any) -> NotebookRun:
    """In its own kernel."""
    return _execute(start_kernel, notebook, options)


def execute_at(connection_file: Path, notebook: Any, **options: Any) -> NotebookRun:
    """In a kernel that others have used before."""
    return _execute(lambda: attach(connection_file), notebook, options)


def _execute(connect: Callable[[], AwaitableContext[Kernel]], notebook: Any, options: dict[str, Any]) -> NotebookRun:
    async def main() -> NotebookRun:
        async with connect() as kernel:
            return await run_notebook(kernel, notebook, **options)

    return run(main())


def plain(notebook: Any) -> list[Any]:
    """Outputs without values that differ between runs. A picture is only counted."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            shown = {key: value for key, value in output.items() if key not in ("metadata", "traceback")}
            if "data" in shown:
                data = {kind: "" if kind.startswith("image/") else value for kind, value in shown["data"].items()}
                data.pop("application/vnd.jupyter.widget-view+json", None)
                shown["data"] = data
            found.append(shown)
    return found


def captured(notebook: Any) -> list[str]:
    """The content of output widgets, sorted by content: ids differ between runs."""
    states = notebook.metadata["widgets"][MIME]["state"].values()
    found = [entry["state"].get("outputs", ()) for entry in states if entry["model_name"] == "OutputModel"]
    return sorted(
        {str([[each.get(key) for key in ("text", "data", "ename")] for each in outputs]) for outputs in found}
    )


def hooks(calls: list[Any]) -> dict[str, Any]:
    """All hooks. Each records its calls."""

    def hook(name: str) -> Any:
        async def called(**words: Any) -> None:
            reply = words.get("execute_reply")
            status = None if reply is None else [reply["content"]["status"], sorted(reply), reply["msg_type"]]
            outputs = len(words["cell"].get("outputs", ())) if name == "on_cell_executed" else None
            calls.append([name, sorted(words), words.get("cell_index"), status, outputs])

        return called

    return {f"on_{name}": hook(f"on_{name}") for name in (*HOOKS, "cell_executed", "cell_error")}


def record() -> dict[str, Any]:
    """The results of nbclient."""

    def by_nbclient(*sources: str, **options: Any) -> Any:
        notebook = book(*sources)
        client = NotebookClient(notebook, kernel_name="python3", timeout=120, startup_timeout=120, **options)
        asyncio.run(client.async_execute())
        return notebook

    varied = by_nbclient(*VARIED, coalesce_streams=True)
    widgets = by_nbclient(*CAPTURED)
    calls: list[Any] = []
    by_nbclient(*HOOKED, allow_errors=True, **hooks(calls))
    return {
        "varied": plain(varied),
        "counts": [cell.get("execution_count") for cell in varied.cells],
        "timing": sorted(varied.cells[1].metadata["execution"]),
        "captured": [plain(widgets), captured(widgets)],
        "progress": plain(by_nbclient(*PROGRESS, coalesce_streams=True)),
        "hooks": calls,
    }


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PLACE.read_text())
    return found


if __name__ == "__main__":
    PLACE.write_text(json.dumps(record(), indent=1) + "\n")
