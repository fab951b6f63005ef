"""Messages: search by id, topic, time, correlation and text. Each result is a link to the life of the message."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from trunkline.cli import show
from trunkline.dashboard.page.elements import box, message_address, text
from trunkline.dashboard.page.filters import ViewAddress
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.search import MessageQuery
from trunkline.dashboard.page.model.text import clock, one_line
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, number
from trunkline.errors import TrunklineError
from trunkline.message import Message

COLUMNS = [
    ListColumn("time", "time (UTC)", width="130px"),
    ListColumn("topic", "topic", "name"),
    ListColumn("id", "id", "id"),
    ListColumn("sender", "sender"),
    ListColumn("type", "type", "tag"),
    ListColumn("size", "bytes", "number"),
    ListColumn("payload", "payload", "wide"),
]
FIELDS = (
    ("text", "Text, id or sender"),
    ("topic", "Topic, such as orders.>"),
    ("correlation", "Correlation or request id"),
    ("since", "Since 2026-11-16T10:00"),
    ("until", "Until 2026-11-16T11:00"),
)


def register(model: PageModel) -> None:
    @ui.page("/messages")
    def messages(text: str = "", topic: str = "", correlation: str = "", since: str = "", until: str = "") -> None:
        query = MessageQuery(text=text, topic=topic, correlation=correlation, since=since, until=until)
        with framed(model, "Messages", "/messages") as shell:
            view = MessagesView(model, query)
            shell.every(1.0, view.refresh)


class MessagesView:
    def __init__(self, model: PageModel, query: MessageQuery) -> None:
        self._model = model
        self._query = query
        self._shown: tuple[int, MessageQuery] | None = None
        with box("tl-tools"):
            for name, label in FIELDS:
                field = ui.input(placeholder=label, value=getattr(query, name)).props("outlined dense debounce=300")
                field.props["aria-label"] = label
                field.style("flex:1 1 170px")
                field.on_value_change(lambda event, name=name: self._changed(name, event.value or ""))
        self._trouble = text("", "tl-banner")
        self._trouble.set_visibility(False)
        self._table = DataTable(COLUMNS, key="key", none="no messages match")
        self._address = ViewAddress("/messages", **msgspec.structs.asdict(query))
        self._address.keeps_order_of(self._table)
        self._note = text("", "tl-note")

    def _changed(self, name: str, value: str) -> None:
        self._query = msgspec.structs.replace(self._query, **{name: value.strip()})
        self._address.change(**msgspec.structs.asdict(self._query))

    async def refresh(self) -> None:
        snapshot = self._model.look()
        if self._model.tail is not None and self._model.journal is None:
            # Without a journal, only messages published while this view is open can be found.
            self._model.tail.want(3.0)
        state = (snapshot.last if snapshot is not None else 0, self._query)
        if state == self._shown:
            return
        query = self._query
        try:
            found = await self._model.find_messages(query)
        except TrunklineError as error:
            self._shown = state
            self._trouble.text = show.plain(str(error))
            self._trouble.set_visibility(True)
            return
        self._shown = state
        self._trouble.set_visibility(False)
        self._table.set([row_of(each) for each in found.messages])
        self._note.text = self._summary(len(found.messages), found.scanned, found.complete)

    def _summary(self, count: int, scanned: int, complete: bool) -> str:
        if self._model.journal is None:
            return "This hub keeps no journal: these are messages that were published while this page was open."
        many = show.counted(count, "message")
        if complete:
            return f"{many}: all matches."
        return f"The newest {many} that match, of {scanned:,} that were read: narrow the search to see older ones."


def row_of(message: Message) -> dict[str, Any]:
    kind = message.type.name.lower()
    return {
        "key": f"{message.seq} {message.id}",
        "time": clock(message.timestamp_ns),
        **cell("topic", message.topic, message_address(message.id), "tl-mono"),
        **cell("id", message.id, message_address(message.id), "tl-mono"),
        "sender": show.plain(message.sender),
        **cell("type", kind, kind="bad" if kind == "error" else "info" if kind in ("request", "response") else ""),
        **number("size", message.size),
        "payload": one_line(message, 300),
    }
