"""Beside each page its Markdown, and llms.txt: the list of them, for programs that read documents."""

from __future__ import annotations

import shutil
from pathlib import Path

HEADER = """# Trunkline

> One message bus for Python agents, actors, notebooks and instruments: inside one process, across processes, across
> machines. Nothing it accepts disappears without a recorded reason, and every message is a row in Spark.

Each page of the site has a Markdown twin at the same place: `guide/` is also `guide.md`.

"""


def write_twins(build: Path) -> int:
    """Copy the staged pages to the site; return how many there are."""
    docs, site = build / "docs", build / "site"
    pages = sorted(docs.rglob("*.md"))
    lines: list[str] = []
    for page in pages:
        name = page.relative_to(docs)
        place = site / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, place)
        lines.append(f"- [{title_of(page)}]({name.as_posix()})\n")
    (site / "llms.txt").write_text(HEADER + "".join(lines))
    return len(pages)


def title_of(page: Path) -> str:
    first = page.read_text().lstrip().partition("\n")[0]
    assert first.startswith("# "), f"{page} has no title"
    return first.removeprefix("# ")
