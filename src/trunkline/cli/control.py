"""`trunkline ping` and `control`: show the health of a bus; pause, resume or drain it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from trunkline.bus.control import BusCommand
from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect
from trunkline.errors import NotAllowed, RequestTimeout
from trunkline.hub.serve import run
from trunkline.topic import CONTROL_PREFIX, endpoint, validate_topic

Name = Annotated[str, typer.Argument(help="The name of the bus.", metavar="NAME")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.001)]


def ping(name: Name, hub: Hub = "", timeout: Timeout = 5.0, json: AsJson = False) -> None:
    """Show the health of a bus. Exits with 1 if no bus of this name answers."""
    control(name, BusCommand.PING, hub, timeout, json)


def control(
    name: Name,
    command: Annotated[BusCommand, typer.Argument(help="pause: handlers take nothing new. drain: finish and close.")],
    hub: Hub = "",
    timeout: Timeout = 5.0,
    json: AsJson = False,
) -> None:
    """Send a command to a bus, and show its health. A hub with rules requires `administer` on _to.NAME."""
    validate_topic(CONTROL_PREFIX + name)

    async def work() -> tuple[float, dict[str, object]]:
        async with connect(hub_at(hub), name="trunkline control") as bus:
            began_ns = bus.broker.world.time_ns()
            try:
                health = await bus.control(name, command, timeout_s=timeout)
            except RequestTimeout as error:
                error.add_note(f"no bus at this hub has the name {name!r}, which `connect(…, name=…)` gives it")
                error.add_note("`trunkline sub '_heartbeat.>'` shows those that have `heartbeat_s` set")
                raise
            except NotAllowed as error:
                error.add_note(f"it needs a rule with the right to administer on {endpoint(name)}")
                raise
            return (bus.broker.world.time_ns() - began_ns) / 1e9, msgspec.to_builtins(health)

    took_s, health = run(work())
    if json:
        show.json({**health, "ping_s": took_s})
        return
    state, since_ns = health.pop("state"), health.pop("since_ns")
    show.output((f"{health.pop('name')} is {state}", "bold"), f", answers within {took_s * 1000:.2f} ms")
    assert isinstance(since_ns, int)
    show.output(f"  {'since':<14} {show.time_of(since_ns)}")
    for key, value in health.items():
        if key != "at_ns":
            show.output(f"  {key.replace('_', ' '):<14} {value:,}")
