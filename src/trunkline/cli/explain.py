"""`trunkline explain`, and the output of `journal explain`: the fate of a message for each subscriber."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated

import typer

from trunkline.bus.explain import Explanation
from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect
from trunkline.delivery.fates import Outcome
from trunkline.hub.serve import run
from trunkline.message import Message

MessageId = Annotated[str, typer.Argument(help="The id of a message.", metavar="ID")]


def explain(message: MessageId, hub: Hub = "", json: AsJson = False) -> None:
    """Show the fate of a message for each subscriber. Exits with 1 if the message is not known."""

    async def work() -> Explanation:
        async with connect(hub_at(hub), name="trunkline explain") as bus:
            return await bus.explain(message)

    found = run(work())
    unknown = f"the hub does not know {message}: longer ago than it remembers, or never accepted there"
    show_outcomes(found.message, found.outcomes, unknown, json=json)


def show_outcomes(message: Message | None, outcomes: Sequence[Outcome], unknown: str, *, json: bool) -> None:
    """In one order, wherever it was asked. Raises Exit if there is no such message."""
    outcomes = sorted(outcomes, key=attrgetter("subscriber"))
    if json:
        show.json({"message": None if message is None else show.record(message), "outcomes": outcomes})
    elif message is not None:
        show.output(show.line(message))
        rows: list[list[object]] = [
            [each.subscriber, each.fate.value, show.time_of(each.at_ns) if each.at_ns else "", each.reason]
            for each in outcomes
        ]
        show.table("", ["subscriber", "fate", "time", "reason"], rows)
        if not rows:
            show.output("nobody subscribed to its topic at the time")
    else:
        show.notice(unknown)
    if message is None:
        raise typer.Exit(1)
