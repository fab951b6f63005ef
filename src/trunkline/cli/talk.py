"""`trunkline pub`, `sub` and `request`: talk to a hub from a terminal or a script."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect
from trunkline.hub.serve import run
from trunkline.message import NORMAL, Message
from trunkline.topic import EVERYTHING, validate_pattern, validate_topic

Topic = Annotated[str, typer.Argument(help="The topic.", metavar="TOPIC")]
Payload = Annotated[
    str | None,
    typer.Argument(help="JSON, or any other text; - or nothing reads one message a line from standard input."),
]


def value_of(text: str) -> object:
    """The value of a JSON text; any other text as it is."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def pub(
    topic: Topic,
    payload: Payload = None,
    hub: Hub = "",
    priority: Annotated[int, typer.Option(help="From 0 to 100.", min=0, max=100)] = NORMAL,
    json: AsJson = False,
) -> None:
    """Publish a message, or one a line from standard input."""
    validate_topic(topic)
    texts = [payload] if payload not in (None, "-") else (line.rstrip("\n") for line in sys.stdin)

    async def work() -> int:
        count = 0
        async with connect(hub_at(hub), name="trunkline pub") as bus:
            for text in texts:
                assert text is not None
                message_id = await bus.publish(topic, value_of(text), priority=priority)
                count += 1
                if json:
                    show.json({"id": message_id})
            await bus.flush()
        return count

    count = run(work())
    if not json and payload in (None, "-"):
        show.output(f"{count} published")


def sub(
    pattern: Annotated[str, typer.Argument(help="Topics: * is one token, > the rest.", metavar="PATTERN")] = EVERYTHING,
    hub: Hub = "",
    count: Annotated[int | None, typer.Option("--count", "-n", help="Exit after this many messages.", min=1)] = None,
    group: Annotated[str | None, typer.Option(help="Share the messages with the others of this group.")] = None,
    durable: Annotated[
        str | None, typer.Option(help="Use a durable subscription of this name: it continues where it stopped.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(help="Where to start on stored topics: end, beginning, last (of each topic), a number, a time."),
    ] = "end",
    json: AsJson = False,
) -> None:
    """Show messages as they are published, until Ctrl-C."""
    validate_pattern(pattern)

    async def work() -> None:
        left = count
        async with connect(hub_at(hub), name="trunkline sub") as bus:
            named = {} if durable is None else {"name": durable, "durable": True}
            place = int(start) if start.isdigit() else start
            async with bus.subscribe(pattern, group=group, start=place, **named) as messages:  # type: ignore[arg-type]
                if not json:
                    show.notice(f"listening to {pattern}; Ctrl-C ends it")
                async for message in messages:
                    _show(message, json)
                    if messages.durable:
                        messages.ack(message)
                    left = None if left is None else left - 1
                    if left == 0:
                        return

    run(work())


def request(
    topic: Topic,
    payload: Payload = None,
    hub: Hub = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.001)] = 30.0,
    json: AsJson = False,
) -> None:
    """Send a request, and show the response."""
    validate_topic(topic)
    text = sys.stdin.read() if payload in (None, "-") else payload
    assert text is not None

    async def work() -> Message:
        async with connect(hub_at(hub), name="trunkline request") as bus:
            answer: Any = await bus.request(topic, value_of(text), reply=Message, timeout_s=timeout)
            return answer  # type: ignore[no-any-return]

    answer = run(work())
    if json:
        show.json(show.record(answer))
    else:
        show.output(str(show.payload(answer)))


def _show(message: Message, json: bool) -> None:
    if json:
        show.json(show.record(message))
    else:
        show.output(show.line(message))
