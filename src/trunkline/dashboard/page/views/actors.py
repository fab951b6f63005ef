"""Actors: the tree of each system, restarts and mailboxes."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from trunkline.actors.health import ActorHealth
from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, empty
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, number
from trunkline.topic import endpoint

COLUMNS = [
    ListColumn("tree", "actor", "link"),
    ListColumn("kind", "kind"),
    ListColumn("health", "health", "tag"),
    ListColumn("mailbox", "mailbox", "number"),
    ListColumn("capacity", "room for", "number"),
    ListColumn("handled", "handled", "number"),
    ListColumn("restarts", "restarts", "number"),
]


def register(model: PageModel) -> None:
    @ui.page("/actors")
    def actors(filter: str = "") -> None:
        with framed(model, "Actors", "/actors") as shell:
            if not model.live:
                empty("Actors are connected to a hub: a journal alone has none.", "hub")
                return
            with box("tl-tools"):
                wanted = ListFilter("/actors", filter)
            table = DataTable(COLUMNS, key="address", none="no actor system answers", rows_per_page=50)
            wanted.filters(table)

            async def refresh() -> None:
                model.look()
                table.set([_row(each, depth) for each, depth in in_tree(await model.actors())])

            shell.every(1.5, refresh)


def in_tree(actors: list[ActorHealth]) -> list[tuple[ActorHealth, int]]:
    """Each actor below its parent, with its depth."""
    known = {each.address for each in actors}
    children: dict[str, list[ActorHealth]] = {}
    for each in sorted(actors, key=lambda one: one.address):
        children.setdefault(each.parent if each.parent in known and each.parent else "", []).append(each)
    found: list[tuple[ActorHealth, int]] = []
    waiting = [(each, 0) for each in reversed(children.get("", []))]
    while waiting:
        actor, depth = waiting.pop()
        found.append((actor, depth))
        waiting += [(each, depth + 1) for each in reversed(children.pop(actor.address, []))]
    return found


def _row(each: ActorHealth, depth: int) -> dict[str, Any]:
    kind = {"ok": "good", "stopped": ""}.get(each.health, "bad")
    branch = "\u2003" * (depth - 1) + "└ " if depth else ""
    actor = cell("tree", each.address, address("/messages", topic=endpoint(each.address)), "tl-mono")
    return {
        "address": each.address,
        **actor,
        "tree": branch + actor["tree"],
        "kind": show.plain(each.kind),
        **cell("health", each.health, kind=kind),
        **number("mailbox", each.mailbox),
        **number("capacity", each.capacity),
        **number("handled", each.handled),
        **number("restarts", each.restarts),
    }
