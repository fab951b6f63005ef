"""`trunkline top`: the actors of all systems on a hub, with mailbox size and number of restarts."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from trunkline.actors.system import ROLL_CALL, ActorHealth
from trunkline.bus.bus import Bus
from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect
from trunkline.errors import StreamEmpty
from trunkline.hub.serve import run

COLUMNS = ["actor", "kind", "health", "mailbox", "handled", "restarts"]


def top(
    hub: Hub = "",
    every: Annotated[float, typer.Option(help="Seconds between two refreshes.", min=0.1)] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-n", help="Exit after this many refreshes.", min=1)] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the actor systems to answer.", min=0.05)] = 0.5,
    json: AsJson = False,
) -> None:
    """Show the actors on a hub, those with the fullest mailboxes first, until Ctrl-C."""

    async def work() -> None:
        looks = 0
        async with connect(hub_at(hub), name="trunkline top") as bus:
            while True:
                actors = await roll_call(bus, wait)
                looks += 1
                _show(actors, json, again=looks > 1)
                if count is not None and looks >= count:
                    return
                await asyncio.sleep(every)

    run(work())


async def roll_call(bus: Bus, wait_s: float) -> list[ActorHealth]:
    """All actors that answer within this time, those with the fullest mailboxes first."""
    here = bus.broker.reply_topic()
    found: list[ActorHealth] = []
    async with bus.subscribe(here) as answers:
        await bus.publish(ROLL_CALL, b"", reply_to=here)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while (left_s := deadline_s - loop.time()) > 0:
            try:
                answer = await answers.recv(left_s)
            except StreamEmpty:
                break
            if answer is not None:
                found += answer.decode(list[ActorHealth])
    return sorted(found, key=lambda actor: (-actor.mailbox, -actor.restarts, actor.address))


def _show(actors: list[ActorHealth], json: bool, *, again: bool) -> None:
    if json:
        for actor in actors:
            show.json(actor)
        return
    if again and show.out.is_terminal:
        show.out.clear()
    if not actors:
        show.notice("no actors: no actor system on this hub answered")
        return
    rows: list[list[object]] = [
        [actor.address, actor.kind, actor.health, actor.mailbox, actor.handled, actor.restarts] for actor in actors
    ]
    show.table("", COLUMNS, rows, numbers=3)
