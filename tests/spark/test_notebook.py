"""The notebook of the examples runs from its first cell to its last, in its own kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.spark.journals import live

NOTEBOOK = Path(__file__).parents[2] / "examples" / "last_hour.ipynb"


@pytest.mark.long
@pytest.mark.parametrize("given", [False, True])
def test_the_last_hour_is_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    if given:
        live(tmp_path / "journal", seed=3, size=40)
        monkeypatch.setenv("TRUNKLINE_JOURNAL", str(tmp_path / "journal"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    asyncio.run(NotebookClient(notebook, timeout=120, kernel_name="python3").async_execute())
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [output for output in outputs if "seq" in output.get("data", {}).get("text/plain", "")]
    assert tables
    assert any("image/png" in output.get("data", {}) for output in outputs)
