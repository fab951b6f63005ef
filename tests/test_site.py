"""The site: every page is in its menu, every link works, and the generated reference is complete."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import trunkline as tl
from docs_site import by_example, plots
from docs_site.reference import api, command_line, error_tree, settings_tables
from docs_site.stage import ROOT, pages_of, stage
from docs_site.twins import title_of
from trunkline.cli.main import COMMANDS, GROUPS

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage(tmp_path_factory.mktemp("build"))


def test_every_page_is_in_the_menu_and_has_a_title(pages: Path) -> None:
    found = {page.relative_to(pages).as_posix() for page in pages.rglob("*.md")}
    for name in found:
        assert title_of(pages / name)
    project = tomllib.loads((pages.parent / "zensical.toml").read_text())["project"]
    assert set(pages_of(project["nav"])) == found


def test_links_lead_somewhere(pages: Path) -> None:
    for page in pages.rglob("*.md"):
        for target in LINK.findall(BLOCK.sub("", page.read_text())):
            file = target.partition("#")[0]
            if file and "://" not in target:
                assert (page.parent / file).exists(), f"{page.relative_to(pages)} links to {target}"


def test_every_example_has_a_page(pages: Path) -> None:
    programs = by_example.programs(ROOT)
    assert {page.stem for page in (pages / "examples").glob("*.md")} == {"index", *(path.stem for path in programs)}
    for path in programs:
        text = (pages / "examples" / f"{path.stem}.md").read_text()
        assert path.read_text().rstrip().splitlines()[-1] in text


def test_every_public_name_has_its_place() -> None:
    text = api.page()
    for name in api.public(tl):
        assert f"### {name}\n" in text
    errors = error_tree.page()
    for name in dir(tl):
        value = getattr(tl, name)
        if isinstance(value, type) and issubclass(value, tl.TrunklineError):
            assert f"`{name}`" in errors
    commands = command_line.page()
    for name in (*COMMANDS, *GROUPS):
        assert f"## trunkline {name}\n" in commands
    assert not re.findall(r"^\| `[^`]*` \|\s*\|$", commands, re.MULTILINE), "every option says what it does"
    assert "| `backpressure.timeout_s` | `30.0` |" in settings_tables.page()


def test_signatures_fit_a_code_block_and_show_no_addresses() -> None:
    blocks = re.findall(r"```text\n(.*?)\n```", api.page(), re.DOTALL)
    assert len(blocks) > 200
    assert [line for block in blocks for line in block.splitlines() if len(line) > 100 or " at 0x" in line] == []
    (connect,) = (block for block in blocks if block.startswith("connect("))
    assert connect.endswith("    embed: bool = False,\n) -> Bus")


def test_no_label_of_a_plot_is_cut() -> None:
    for _, picture in plots.pictures(ROOT):
        labels = re.findall(r'text-anchor="end"[^>]*>([^<]*)<', picture)
        assert labels
        # A letter of 13 pixels is about 7 wide.
        assert [label for label in labels if len(html.unescape(label)) * 7 > plots.LABELS - 8] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    done = subprocess.run(
        [sys.executable, "-m", "docs_site", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    twins = {page.relative_to(site).as_posix() for page in site.rglob("*.md")}
    assert len(twins) > 35
    listed = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert set(listed) == twins
    for page in site.rglob("*.html"):
        assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?://", page.read_text())
