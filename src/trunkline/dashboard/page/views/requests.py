"""Recent requests, and orphans: answers for which no request was waiting, with the reason."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from trunkline.cli import show
from trunkline.dashboard.page.elements import box, message_address, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.requests import RequestRow
from trunkline.dashboard.page.model.text import age, clock
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, number
from trunkline.journal.records import OrphanRecord

REQUESTS = [
    ListColumn("time", "time (UTC)", width="130px"),
    ListColumn("topic", "topic", "name"),
    ListColumn("id", "request", "id"),
    ListColumn("sender", "asked by"),
    ListColumn("state", "state", "tag"),
    ListColumn("took", "answered after", "number"),
    ListColumn("by", "answered by"),
]
ORPHANS = [
    ListColumn("time", "time (UTC)", width="130px"),
    ListColumn("topic", "topic"),
    ListColumn("id", "message", "id"),
    ListColumn("why", "why"),
]
NO_JOURNAL = "this hub keeps no journal here: neither requests nor orphans are stored"


def register(model: PageModel) -> None:
    @ui.page("/requests")
    def requests(filter: str = "") -> None:
        with framed(model, "Requests and orphans", "/requests") as shell:
            with box("tl-tools"):
                wanted = ListFilter("/requests", filter)
                note = text("", "tl-note")
            asked = DataTable(REQUESTS, key="id", none="no requests among the newest messages")
            text("Orphans: answers to requests that nobody waits for", "tl-h2").style("margin-top:20px")
            orphans = DataTable(ORPHANS, key="key", none="no orphans")
            for table in (asked, orphans):
                wanted.filters(table)

            async def refresh() -> None:
                model.look()
                note.text = "" if model.journal is not None or model.snapshot is None else NO_JOURNAL
                asked.set([_request(each) for each in await model.requests()])
                orphans.set([_orphan(each) for each in await model.orphans()])

            shell.every(1.0, refresh)


def _request(each: RequestRow) -> dict[str, Any]:
    kind = {"answered": "good", "failed": "bad"}.get(each.state, "warn")
    return {
        "time": clock(each.request.timestamp_ns),
        **cell("topic", each.request.topic, message_address(each.request.id), "tl-mono"),
        **cell("id", each.request.id, message_address(each.request.id), "tl-mono"),
        "sender": show.plain(each.request.sender),
        **cell("state", each.state, kind=kind),
        **number("took", each.took_ns / 1e6, age(each.took_ns / 1e9) if each.answer is not None else "–"),
        "by": show.plain(each.answer.sender) if each.answer is not None else "–",
    }


def _orphan(each: OrphanRecord) -> dict[str, Any]:
    return {
        "key": f"{each.seq}",
        "time": clock(each.at_ns),
        "topic": show.plain(each.topic),
        **cell("id", each.id, message_address(each.id), "tl-mono"),
        "why": show.plain(each.why),
    }
