"""The page on a journal with a warehouse, in a real browser: its tables, how fresh they are, and the report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dashboard.browser import Tab, chromium, expect, needs_chromium
from tests.dashboard.pages import page
from trunkline.spark.pipeline.views import table
from trunkline.spark.report import report

pytestmark = [pytest.mark.slow, needs_chromium]


def test_tables_freshness_and_the_report(spark: SparkSession, journal: Path, warehouse: Path, tmp_path: Path) -> None:
    copy = tmp_path / "journal"
    shutil.copytree(journal, copy)
    shutil.copytree(warehouse, copy / "warehouse")
    letters = table(spark, warehouse, "letters").count()
    with page("--journal", str(copy)) as served, chromium() as browser:
        tab = Tab(browser.new_context(), served.address)
        tab.page.goto(served.link)
        shown = tab.go("/pipeline")
        row = shown.locator("tbody tr").filter(has=shown.get_by_text("letters", exact=True))
        expect(row).to_have_count(1)
        assert row.locator("td").nth(1).inner_text() == f"{letters:,}"
        stats = shown.locator(".tl-stat")
        expect(stats.nth(0)).to_contain_text("2")  # runs
        expect(stats.nth(1)).to_contain_text("in the tables")
        expect(shown.locator("#content")).to_contain_text("trunkline pipeline report")
        expect(shown.get_by_role("link", name="Open the report")).to_be_hidden()
        report(spark, warehouse, copy / "warehouse" / "report.html")
        shown.get_by_role("link", name="Open the report").click()
        expect(shown.locator("h1")).to_have_text("Traffic of the bus")
        expect(shown.locator("body")).to_contain_text("Dead letters by cause")
        assert tab.errors == []
