"""`trunkline status` and `trace`: the state of a hub, and its control messages."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect_hub
from trunkline.dashboard.problems import problems
from trunkline.hub.serve import run
from trunkline.wire import control
from trunkline.wire.snapshot import HubSnapshot


def status(
    hub: Hub = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.", min=0.001)] = 2.0,
    json: AsJson = False,
) -> None:
    """Show the state of the hub, its problems, and what to do next. Exits with 1 if there is a problem."""

    async def work() -> tuple[float, dict[str, object], HubSnapshot]:
        how = ConnectionSettings(connect_s=timeout)
        async with connect_hub(hub_at(hub), name="trunkline status", connection=how) as broker:
            found = await broker.hub_stats()
            snapshot = await broker.snapshot()
            return await broker.ping(), found, snapshot

    took_s, found, snapshot = run(work())
    wrong = problems(snapshot)
    if json:
        show.json({"healthy": not wrong, "ping_s": took_s, "problems": wrong, **found})
    else:
        well = ("healthy", "bold green") if not wrong else (show.counted(len(wrong), "problem"), "bold red")
        show.output(well, f", answers within {took_s * 1000:.2f} ms")
        for problem in wrong:
            show.output(("  ! ", "bold red"), problem.text)
            show.output("    next: ", problem.next_step)
        _show_counters(found)
    if wrong:
        raise typer.Exit(1)


def _show_counters(found: dict[str, object]) -> None:
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {each:,}" for key, each in value.items() if each)
            if not value:
                continue
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        show.output(f"  {name.replace('_', ' '):<14} ", f"{value:,}" if isinstance(value, int) else str(value))


def trace(
    client: Annotated[str, typer.Argument(help="Only clients whose name matches; * and ? are wildcards.")] = "*",
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """Show the control messages between the hub and its clients, until Ctrl-C."""

    async def work() -> None:
        async with connect_hub(hub_at(hub), name="trunkline trace") as broker:
            connection = broker.connection

            def show_traced(traced: control.Traced) -> None:
                if json:
                    show.json(
                        {"at_ns": traced.at_ns, "client": traced.client, "direction": traced.direction, **traced.what}
                    )
                else:
                    arrow = "→ hub" if traced.direction == "in" else "← hub"
                    rest = {name: value for name, value in traced.what.items() if name != "type"}
                    show.output(
                        f"{show.time_of(traced.at_ns)}  {traced.client} {arrow}  ",
                        (str(traced.what["type"]), "bold"),
                        f"  {rest}",
                    )

            connection.listeners[control.Traced] = show_traced
            await connection.ask(lambda asked: control.Trace(id=asked, client=client))
            if not json:
                show.notice("tracing; Ctrl-C ends it")
            await asyncio.Event().wait()

    run(work())
