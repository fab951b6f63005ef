"""Kernels that are shared on the bus, their running executions and the output so far."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, card, code, empty, link, tag, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.executions import KernelExecution, topics_of
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import age, clock
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell
from trunkline.jupyter.presence import SharedKernel

MAX_SHOWN = 30
COLUMNS = [
    ListColumn("id", "kernel", "link"),
    ListColumn("language", "language"),
    ListColumn("by", "shared by"),
]


def register(model: PageModel) -> None:
    @ui.page("/kernels")
    def kernels(filter: str = "") -> None:
        with framed(model, "Kernels", "/kernels") as shell:
            if not model.live:
                empty("Kernels are shared on a hub: a journal alone has none.", "terminal")
                return
            with box("tl-tools"):
                wanted = ListFilter("/kernels", filter)
            table = DataTable(COLUMNS, key="id", none="no kernel is shared: `trunkline kernel share` shares one")
            wanted.filters(table)

            async def refresh() -> None:
                model.look()
                table.set([_row(each) for each in await model.kernels()])

            shell.every(2.0, refresh)

    @ui.page("/kernels/{kernel_id}")
    def kernel(kernel_id: str) -> None:
        with framed(model, "Kernel", "/kernels") as shell:
            text(kernel_id, "tl-sub tl-mono").style("margin:-10px 0 14px;overflow-wrap:anywhere")
            link("its messages", address("/messages", topic=topics_of(kernel_id)))
            content = box("").style("margin-top:14px")
            shown: list[KernelExecution] | None = None

            async def refresh() -> None:
                nonlocal shown
                model.look()
                found = await model.executions(kernel_id)
                if found == shown:
                    return
                shown = found
                content.clear()
                with content:
                    for each in found[:MAX_SHOWN]:
                        _execution(each)
                    if not found:
                        empty(
                            "No executions yet. Without a journal, only those while this page is open are shown.",
                            "terminal",
                        )

            shell.every(1.0, refresh)


def _execution(each: KernelExecution) -> None:
    with card():
        with box("tl-tools"):
            tag(each.state, {"ok": "good", "error": "bad"}.get(each.state, "info"))
            text(f"{clock(each.at_ns)} UTC", "tl-note")
            if each.ended_ns:
                text(f"took {age((each.ended_ns - each.at_ns) / 1e9)}", "tl-note")
        code(each.code)
        if each.output:
            text("Output so far" if each.state == "running" else "Output", "tl-h2").style("margin-top:10px")
            code(each.output)


def _row(each: SharedKernel) -> dict[str, Any]:
    return {
        **cell("id", each.id, "/kernels/" + quote(each.id, safe=""), "tl-mono"),
        "language": show.plain(each.language),
        "by": show.plain(each.shared_by),
    }
