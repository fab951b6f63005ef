"""Subscribers with their rates, waiting messages, lag, fates and overflow policies, and for how long each is slow.

Also the connected clients.
"""

from __future__ import annotations

from typing import Any

from nicegui import ui

from trunkline.cli import show
from trunkline.dashboard.looks import state_of
from trunkline.dashboard.page.elements import address, box, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.history import key_of
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import age, rate
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, fates_bar, number
from trunkline.dashboard.page.theme import FATES
from trunkline.plural import counted
from trunkline.wire.snapshot import ClientSnapshot, HubSnapshot, SubscriberSnapshot

COLUMNS = [
    ListColumn("name", "subscriber", "short"),
    ListColumn("pattern", "pattern", "short"),
    ListColumn("client", "client"),
    ListColumn("state", "state", "tag"),
    ListColumn("rate", "per s", "number"),
    ListColumn("waiting", "waiting", "number"),
    ListColumn("oldest", "oldest", "number"),
    ListColumn("behind", "behind", "number"),
    ListColumn("fates", "fates", "bar", "90px"),
    ListColumn("policy", "when full", "wrapped", "110px"),
]
CLIENTS = [
    ListColumn("name", "client", "short"),
    ListColumn("identity", "identity"),
    ListColumn("address", "address"),
    ListColumn("state", "state", "tag"),
    ListColumn("since", "connected for", "number"),
    ListColumn("subscriptions", "subscriptions", "number"),
    ListColumn("published", "published", "number"),
    ListColumn("delivered", "delivered", "number"),
    ListColumn("held_up", "batches held up", "number"),
]


def register(model: PageModel) -> None:
    @ui.page("/subscribers")
    def subscribers(filter: str = "") -> None:
        with framed(model, "Subscribers", "/subscribers") as shell:
            with box("tl-tools"):
                wanted = ListFilter("/subscribers", filter)
                box("tl-grow")
                legend()
            table = DataTable(COLUMNS, key="key", none="no subscribers")
            wanted.filters(table)
            note = text("", "tl-note")
            text("Clients", "tl-h2", id="clients").style("margin-top:20px")
            clients = DataTable(CLIENTS, key="session", none="no clients are connected")
            wanted.filters(clients)

            def refresh() -> None:
                snapshot = model.snapshot
                assert snapshot is not None
                table.set([_row(model, snapshot, each) for each in snapshot.subscribers])
                clients.set([_client(snapshot, each) for each in snapshot.clients])
                rest = snapshot.subscribers_total - len(snapshot.subscribers)
                note.text = f"not shown: {counted(rest, 'subscriber')} with the fewest waiting messages" if rest else ""

            shell.with_model(refresh)


def legend() -> None:
    with box("tl-legend"):
        for name, colour in FATES.items():
            with box("", "span"):
                box("", "i").style(f"background:{colour}")
                text(name.replace("_", " "), tag="span")


def _row(model: PageModel, snapshot: HubSnapshot, each: SubscriberSnapshot) -> dict[str, Any]:
    state = state_of(each, snapshot.at_ns)
    kind = "bad" if state.startswith(("slow", "not", "lost")) else "info" if state != "ok" else "good"
    waited_s = (snapshot.at_ns - each.waiting_since_ns) / 1e9 if each.waiting_since_ns else 0.0
    per_s = round(model.history.subscriber_rate(each), 2)
    return {
        "key": key_of(each),
        **cell("name", each.name, address("/subscribers", filter=each.name)),
        **cell("pattern", each.pattern, address("/messages", topic=each.pattern), "tl-mono"),
        **cell("client", each.client or "–"),
        **cell("state", state, kind=kind),
        **number("rate", per_s, rate(per_s)),
        **number("waiting", each.waiting),
        **number("oldest", round(waited_s, 1), age(waited_s) if waited_s else "–"),
        **number("behind", each.behind, f"{each.behind:,}" if each.durable else "–"),
        **fates_bar({name: getattr(each, name) for name in FATES}),
        "policy": f"{each.overflow.replace('_', ' ')}, {each.capacity:,}" if each.capacity else "kept in the journal",
    }


def _client(snapshot: HubSnapshot, each: ClientSnapshot) -> dict[str, Any]:
    since_s = max(0.0, (snapshot.at_ns - each.since_ns) / 1e9)
    return {
        "session": each.session,
        **cell("name", each.name, address("/messages", text=each.name)),
        "identity": show.plain(each.identity),
        "address": show.plain(each.address),
        **cell("state", "silent" if each.suspected else "ok", kind="bad" if each.suspected else "good"),
        **number("since", round(since_s), age(since_s)),
        **number("subscriptions", each.subscriptions),
        **number("published", each.published),
        **number("delivered", each.delivered),
        **number("held_up", each.held_up),
    }
