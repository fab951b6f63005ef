"""The pipeline: the tables that Spark built from the journal, their freshness, and the report."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import FileResponse
from nicegui import app, ui

from trunkline.cli import show
from trunkline.dashboard.page.elements import Stat, box, empty, link, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import age, inert
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, number
from trunkline.spark.pipeline.status import TableStatus

COLUMNS = [
    ListColumn("table", "table"),
    ListColumn("rows", "rows", "number"),
    ListColumn("first", "first hour"),
    ListColumn("last", "last hour"),
    ListColumn("files", "files", "number"),
    ListColumn("size", "size", "number"),
]
REPORT_AT = "/pipeline/report"
HOW = "To show a report here, run: trunkline pipeline report {0} --output {0}/warehouse/report.html"
ALONE = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
"""The security headers of the report, which needs neither scripts nor other files."""


def register(model: PageModel) -> None:
    @app.get(REPORT_AT)
    def report_file() -> Response:
        path = model.report()
        if path is None:
            return Response("there is no report yet", status_code=404, media_type="text/plain")
        return FileResponse(path, media_type="text/html", headers=ALONE)

    @ui.page("/pipeline")
    def pipeline(filter: str = "") -> None:
        with framed(model, "Pipeline", "/pipeline") as shell:
            none = box("")
            with none:
                why = text("", "tl-note")
                empty("No warehouse beside the journal yet: `trunkline pipeline run DIRECTORY` creates its tables.")
            content = box("")
            with content:
                with box("tl-grid tl-stats"):
                    run, behind, lag, late = Stat("Last run"), Stat("Messages behind"), Stat("Freshness"), Stat("Late")
                with box("tl-tools"):
                    wanted = ListFilter("/pipeline", filter)
                    report = link("Open the report", REPORT_AT)
                    how = text("", "tl-note")
                table = DataTable(COLUMNS, key="table", none="no tables")
                wanted.filters(table)
            content.set_visibility(False)

            async def refresh() -> None:
                model.look()
                found = await model.pipeline()
                none.set_visibility(found is None)
                content.set_visibility(found is not None)
                if found is None or model.journal is None:
                    why.text = "" if model.journal is not None else "There is no journal on this machine."
                    return
                written = model.report()
                report.set_visibility(written is not None)
                how.text = "" if written is not None else inert(HOW.format(model.journal.directory))
                run.set(f"{found.run:,}", f"up to {found.upto or 'nothing'}")
                behind.set(f"{found.behind:,}", f"{found.messages:,} in the tables", bad=found.behind > 1_000_000)
                lag.set(age(found.lag_s), "behind the journal")
                late.set(f"{found.late:,}", f"{found.duplicates:,} duplicates")
                table.set([_row(each) for each in found.tables])

            shell.every(3.0, refresh)


def _row(each: TableStatus) -> dict[str, Any]:
    return {
        "table": show.plain(each.table),
        **number("rows", each.rows),
        "first": each.first,
        "last": each.last,
        **number("files", each.files),
        **number("size", each.bytes, show.size(each.bytes)),
    }
