"""`trunkline pub`, `sub` and `request`: talk to a hub from a terminal or a script."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from json import JSONDecodeError, loads
from typing import Annotated, Any

import msgspec
import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect
from trunkline.errors import UsageError
from trunkline.hub.serve import run
from trunkline.message import NORMAL, Message
from trunkline.topic import EVERYTHING, validate_pattern, validate_topic

Topic = Annotated[str, typer.Argument(help="The topic.", metavar="TOPIC")]
Payload = Annotated[
    str | None,
    typer.Argument(
        help="JSON, or other text. With - or no argument, one message per line is read from standard input."
    ),
]


AsText = Annotated[bool, typer.Option("--text", help="Send the payload as text, also if it looks like JSON.")]
OPENING = ("{", "[", '"')


def value_of(text: str, where: str = "the payload") -> object:
    """Parse a JSON text; return any other text unchanged.

    Raises UsageError if the text looks like JSON but is invalid.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        if not text.lstrip().startswith(OPENING):
            return text
    try:
        loads(text)
    except JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        near = text[max(0, error.pos - 10) : error.pos + 10]
        raise UsageError(
            f"{where} is not JSON: {error.msg} at {place}, near {near!r}; correct it, or pass --text to send it as text"
        ) from None
    # Values that Python's parser accepts but JSON does not define, such as NaN.
    raise UsageError(f"{where} is not JSON: it has a value that JSON does not support; pass --text to send it as text")


def pub(
    topic: Topic,
    payload: Payload = None,
    hub: Hub = "",
    priority: Annotated[int, typer.Option(help="From 0 to 100.", min=0, max=100)] = NORMAL,
    text: AsText = False,
    json: AsJson = False,
) -> None:
    """Publish a message, or one message per line of standard input, and print the ids."""
    validate_topic(topic)
    single = payload is not None and payload != "-"
    if single:
        assert payload is not None
        # Parsed before connecting: an invalid payload does not depend on the hub.
        values: Iterable[object] = [payload if text else value_of(payload)]
    else:
        lines = (line.rstrip("\n") for line in sys.stdin)
        values = lines if text else (value_of(line, f"line {number}") for number, line in enumerate(lines, 1))

    async def work() -> int:
        count = 0
        async with connect(hub_at(hub), name="trunkline pub") as bus:
            for value in values:
                message_id = await bus.publish(topic, value, priority=priority)
                count += 1
                if json:
                    show.json({"id": message_id})
                elif single:
                    await bus.flush()
                    show.output(message_id)
            await bus.flush()
        return count

    count = run(work())
    if not json and not single:
        show.output(f"{count} published")


def sub(
    pattern: Annotated[str, typer.Argument(help="Topics: * is one token, > the rest.", metavar="PATTERN")] = EVERYTHING,
    hub: Hub = "",
    count: Annotated[int | None, typer.Option("--count", "-n", help="Exit after this many messages.", min=1)] = None,
    group: Annotated[str | None, typer.Option(help="Share the messages with the other members of this group.")] = None,
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
    as_text: AsText = False,
    json: AsJson = False,
) -> None:
    """Send a request, and show the response."""
    validate_topic(topic)
    text = sys.stdin.read() if payload in (None, "-") else payload
    assert text is not None
    value = text if as_text else value_of(text)

    async def work() -> Message:
        async with connect(hub_at(hub), name="trunkline request") as bus:
            answer: Any = await bus.request(topic, value, reply=Message, timeout_s=timeout)
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
