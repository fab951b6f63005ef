"""How long does a notebook of 200 cells take, from the start of its kernel to its end?"""

from __future__ import annotations

import time
from typing import Any

import nbformat
from nbclient import NotebookClient

from benchmarks.harness import Case, Sample
from trunkline.jupyter import run_notebook, start_kernel

NBCLIENT = "nbclient"
CELLS = 200


def notebook(cells: int) -> Any:
    """A notebook with typical cells: assignments, prints, values and displayed objects."""
    kinds = ("x = {n}", "print('cell', {n})", "x + {n}", "display({{'n': {n}}})")
    sources = [kinds[number % len(kinds)].format(n=number) for number in range(cells)]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


async def ours(cells: int) -> Sample:
    book = notebook(cells)
    began = time.perf_counter()
    async with start_kernel() as kernel:
        done = await run_notebook(kernel, book)
    took_s = time.perf_counter() - began
    assert done.ok
    check(book)
    return Sample(took_s, took_s)


def nbclient(cells: int) -> Sample:
    book = notebook(cells)
    began = time.perf_counter()
    NotebookClient(book, kernel_name="python3").execute()
    took_s = time.perf_counter() - began
    check(book)
    return Sample(took_s, took_s)


def check(book: Any) -> None:
    assert all(bool(cell.outputs) == (number % 4 > 0) for number, cell in enumerate(book.cells))


CASE = Case(
    name="jupyter-notebook",
    question="a notebook, whole, from the start of its kernel to its end",
    unit="s",
    better="less",
    ours=ours,
    peers={NBCLIENT: nbclient},
    target={NBCLIENT: 1.1},
    aim={NBCLIENT: 1 / 0.7},
    fixed=True,
    size=CELLS,
    rounds=5,
    round_s=6.0,
)
