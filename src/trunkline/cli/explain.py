"""`trunkline explain`: the fate of a message for each subscriber, from a hub, an engine or a journal."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect, is_engine
from trunkline.delivery.fates import Outcome
from trunkline.errors import UsageError
from trunkline.hub.serve import run
from trunkline.message import Message

MessageId = Annotated[str, typer.Argument(help="The id of a message; in a journal also its number.", metavar="ID")]
InJournal = Annotated[
    Path | None, typer.Option(help="Look in the journal in this directory, and ask no hub.", metavar="DIRECTORY")
]


def explain(message: MessageId, hub: Hub = "", journal: InJournal = None, json: AsJson = False) -> None:
    """Show the fate of a message for each subscriber. Exits with 1 if the message is not known.

    --hub takes the URL of a hub, or of a NATS or Redis server. A journal can be read while its hub runs.
    """
    if journal is not None:
        if hub:
            raise UsageError("pass either --hub or --journal, not both")
        explain_in(journal, message, json=json)
        return

    url = hub_at(hub)

    async def work() -> tuple[Message | None, list[Outcome]]:
        async with connect(url, name="trunkline explain") as bus:
            # Raises HubUnavailable; `bus.explain` would return the records of this process instead.
            return await bus.broker.explain(message)

    found, outcomes = run(work())
    unknown = (
        f"no process on this server knows {message}: it is too old, or the processes that knew it have ended"
        if is_engine(url)
        else f"the hub does not know {message}: it is too old, or this hub never accepted it; "
        "if it has a journal, pass --journal DIRECTORY"
    )
    _show_outcomes(found, outcomes, unknown, json=json)


def explain_in(directory: Path, message: str, *, json: bool) -> None:
    """Show the fates of a message from a journal, without a hub."""
    # Imported here, so that queries of a hub do not import the journal.
    from trunkline.cli.access import reading, there

    with reading(there(directory)) as reader:
        numbered = reader.some([int(message)]) if message.isdecimal() else []
        found = numbered[0] if numbered else reader.find(message, everywhere=True)
        outcomes = [] if found is None else reader.outcomes(found)
    unknown = f"{message} is not in this journal: `trunkline journal tail {directory}` shows messages"
    _show_outcomes(found, outcomes, unknown, json=json)


def _show_outcomes(message: Message | None, outcomes: Sequence[Outcome], unknown: str, *, json: bool) -> None:
    """Print the outcomes in a fixed order, the same for every source. Raises Exit if the message is unknown."""
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
            show.output("its topic had no subscribers at that time")
    else:
        show.notice(unknown)
    if message is None:
        raise typer.Exit(1)
