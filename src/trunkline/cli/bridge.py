"""`trunkline bridge`: mirror topics of a hub on a NATS or Redis server, and back."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from trunkline.bridge import Bridge
from trunkline.brokers.engine.settings import without_login
from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect
from trunkline.hub.serve import run, until_signal
from trunkline.topic import validate_pattern


def bridge(
    engine: Annotated[str, typer.Argument(help="The server: nats://… or redis://…", metavar="URL")],
    patterns: Annotated[
        list[str], typer.Argument(help="Topics: * is one token, > the rest, as in 'orders.>'.", metavar="PATTERN")
    ],
    hub: Hub = "",
    direct: Annotated[bool, typer.Option(help="Also mirror direct messages to endpoints.")] = True,
    json: AsJson = False,
) -> None:
    """Mirror topics of a hub on a server, both ways, until Ctrl-C or SIGTERM."""
    for pattern in patterns:
        validate_pattern(pattern)
    server = without_login(engine)

    async def work() -> None:
        async with (
            connect(hub_at(hub), name="trunkline bridge") as here,
            connect(engine, name="trunkline bridge") as there,
            Bridge(here, there, patterns, direct=direct),
        ):
            if json:
                show.json({"hub": hub_at(hub), "engine": server, "patterns": patterns})
            show.notice(f"mirroring {', '.join(patterns)} on {server}; Ctrl-C ends it")
            await asyncio.Event().wait()

    run(until_signal(work()))
