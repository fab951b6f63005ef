"""Staging: the pages of docs/, README and project files, with links that hold on the site, and the generated pages."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_site import by_example, plots
from docs_site.reference import api, command_line, error_tree, settings_tables

ROOT = Path(__file__).parent.parent
CONFIGURATION = Path(__file__).with_name("zensical.toml")
STYLE = Path(__file__).with_name("extra.css")
PROJECT = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
CONTINUES = re.compile(r"^<!-- continues -->\n+", re.MULTILINE)


def stage(build: Path) -> Path:
    """Write all pages below `build`/docs, and the configuration beside it; return the directory of the pages."""
    docs = build / "docs"
    for folder in (docs, build / "site"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", docs)
    places = {path: docs / path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*") if path.is_file()}
    places[ROOT / "README.md"] = docs / "index.md"
    places |= {ROOT / name: docs / "project" / name for name in PROJECT}
    places[ROOT / "examples"] = docs / "examples" / "index.md"
    places |= {path: docs / "examples" / f"{path.stem}.md" for path in by_example.programs(ROOT)}
    for source, place in places.items():
        if source.suffix == ".md":
            _write(place, CONTINUES.sub("", _moved(source.read_text(), source, place, places)))
    for name, text in generated():
        _write(docs / name, text)
    shutil.copy(STYLE, docs)
    _write(build / "zensical.toml", _configuration(docs))
    return docs


def generated() -> Iterator[tuple[str, str]]:
    """The pages that are generated from the code, by name."""
    yield from by_example.pages(ROOT)
    yield "reference/api.md", api.page()
    yield "reference/settings.md", settings_tables.page()
    yield "reference/errors.md", error_tree.page()
    yield "reference/command-line.md", command_line.page()
    yield from plots.pictures(ROOT)


def _configuration(docs: Path) -> str:
    """With the examples in the menu, and at the end of "How to" the pages that it does not name."""
    named = set(navigation())
    examples = sorted((name for name, _ in by_example.pages(ROOT)), key=lambda name: "index" not in name)
    others = sorted(page.name for page in docs.glob("*.md") if page.name not in named)
    text = CONFIGURATION.read_text().replace('"examples"', str(examples))
    return text.replace('"coming-from.md",', "".join(f'"{name}", ' for name in ["coming-from.md", *others]))


def navigation() -> list[str]:
    """The pages that the menu names, in its order."""
    project = tomllib.loads(CONFIGURATION.read_text())["project"]
    return list(pages_of(project["nav"]))


def pages_of(entry: Any) -> Iterator[str]:
    """The pages that an entry of the menu names."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(each)


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def _moved(text: str, source: Path, place: Path, places: dict[Path, Path]) -> str:
    """The text with links that lead from its new place to the new places of others."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if not target or "://" in target:
            return found[0]
        there = (source.parent / target).resolve()
        if there not in places:
            # A page that is generated; or a file of the repository, which is no page.
            return found[0] if there.is_relative_to(ROOT / "docs") else found["text"].strip("[]")
        return f"{found['text']}({os.path.relpath(places[there], place.parent)}{found['anchor'] or ''})"

    return LINK.sub(link, text)
