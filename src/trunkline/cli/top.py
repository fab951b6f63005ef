"""`trunkline top`: the activity at a hub, as a live view on a terminal or as lines for scripts."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from trunkline.bus.explain import Explanation
from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect, connect_hub
from trunkline.dashboard.looks import HubLook, look, tables
from trunkline.hub.serve import run

NAME = "trunkline top"


def top(
    hub: Hub = "",
    every: Annotated[float, typer.Option(help="Seconds between two refreshes.", min=0.1)] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-n", help="Exit after this many refreshes.", min=1)] = None,
    rows: Annotated[int, typer.Option(help="Show at most this many of each kind.", min=1, max=10_000)] = 200,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for actor systems and kernels to answer.", min=0.05)
    ] = 0.5,
    json: AsJson = False,
) -> None:
    """Show subscribers, clients, topics, actors, kernels and channels of a hub, slow ones first, until Ctrl-C.

    On a terminal, keys sort, filter, and show the fate of a message. With --json or --count, or without a terminal, it
    prints lines.
    """
    if show.out.is_terminal and not json and count is None:
        _watch(hub, every, rows, wait)
        return

    async def work() -> None:
        looks = 0
        before: HubLook | None = None
        async with connect_hub(hub_at(hub), name=NAME) as broker, connect(broker, name=NAME) as bus:
            while True:
                found = await look(broker, bus, rows, wait)
                looks += 1
                if json:
                    show.json(found)
                else:
                    _print(found, before)
                before = found
                if count is not None and looks >= count:
                    return
                await asyncio.sleep(every)

    run(work())


def _watch(hub: str, every_s: float, rows: int, wait_s: float) -> None:
    # The import is slow, and scripts do not need it.
    from trunkline.dashboard.terminal import TopApp

    async def work() -> None:
        async with connect_hub(hub_at(hub), name=NAME) as broker, connect(broker, name=NAME) as bus:

            async def look_once() -> HubLook:
                return await look(broker, bus, rows, wait_s)

            async def explain(message_id: str) -> Explanation:
                return await bus.explain(message_id)

            # Connect once before the terminal switches to the full-screen view, so that an error is printed as a line.
            await look_once()
            await TopApp(look_once, explain, show.plain, every_s).run_async()

    run(work())


def _print(found: HubLook, before: HubLook | None) -> None:
    for name, table in tables(found, before).items():
        if table.rows:
            numbers = sum(isinstance(cell, int) for cell in table.rows[0])
            show.table(name, list(table.columns), [list(row) for row in table.rows], numbers=numbers)
    if not found.actors:
        show.notice("no actors: no actor system on this hub answered")
