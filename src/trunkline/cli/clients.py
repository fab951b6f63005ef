"""`trunkline clients` and `trunkline subscribers`: the clients and the subscribers of a hub."""

from __future__ import annotations

from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect_hub
from trunkline.dashboard.looks import SUBSCRIBER_COLUMNS, subscriber_row
from trunkline.hub.serve import run
from trunkline.wire.snapshot import HubSnapshot

CLIENT_COLUMNS = ["client", "identity", "address", "connected", "subscriptions", "published", "delivered", "held up"]
Rows = Annotated[int, typer.Option("--rows", "-n", help="Show at most this many.", min=1, max=10_000)]


def clients(hub: Hub = "", rows: Rows = 1000, json: AsJson = False) -> None:
    """List the clients that are connected to the hub."""
    snapshot = run(ask(hub, rows, "trunkline clients"))
    if json:
        for client in snapshot.clients:
            show.json(client)
        return
    cells: list[list[object]] = [
        [
            each.name,
            each.identity,
            each.address,
            show.time_of(each.since_ns),
            each.subscriptions,
            each.published,
            each.delivered,
            each.held_up,
        ]
        for each in snapshot.clients
    ]
    show.table("", CLIENT_COLUMNS, cells, numbers=4)
    _note_rest(len(cells), snapshot.clients_total, "client")


def subscribers(hub: Hub = "", rows: Rows = 1000, json: AsJson = False) -> None:
    """List the subscribers at the hub, the slowest first, with the fates of their messages."""
    snapshot = run(ask(hub, rows, "trunkline subscribers"))
    if json:
        for subscriber in snapshot.subscribers:
            show.json(subscriber)
        return
    cells = [subscriber_row(each, snapshot.at_ns) for each in snapshot.subscribers]
    show.table("", SUBSCRIBER_COLUMNS, cells, numbers=5)
    _note_rest(len(cells), snapshot.subscribers_total, "subscriber")


async def ask(hub: str, rows: int, name: str) -> HubSnapshot:
    async with connect_hub(hub_at(hub), name=name) as broker:
        return await broker.snapshot(rows)


def _note_rest(shown: int, total: int, what: str) -> None:
    if not total:
        show.notice(f"no {what}s")
    elif shown < total:
        show.notice(f"{show.counted(total - shown, f'{what} more', f'{what}s more')}: raise --rows to see them")
