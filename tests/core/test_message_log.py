"""Log lines: one event a line, with the message and the trace that it is about."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import TracerProvider

import trunkline as tl
from trunkline.message_log import JsonLines, TextLines, about
from trunkline.testing import Simulation, simulate, world


@contextmanager
def logged(name: str, formatter: logging.Formatter) -> Iterator[io.StringIO]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger = logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield out
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def event(text: str) -> logging.LogRecord:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        return logging.LogRecord("trunkline.test", logging.ERROR, __file__, 1, text, None, sys.exc_info())


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_an_event_is_one_line_whatever_is_in_it(formatter: logging.Formatter) -> None:
    line = formatter.format(event("foreign\n\x1b[31m text\u2028"))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert "ValueError" in line


def test_json_has_fields() -> None:
    found = json.loads(JsonLines().format(event("lost")))
    assert (found["level"], found["logger"], found["text"]) == ("ERROR", "trunkline.test", "lost")
    assert found["traceback"].endswith("ValueError: two\nlines")
    assert "message_id" not in found


def test_what_concerns_a_message_has_its_id_and_its_trace() -> None:
    """The log lines of the bus, and with the hook `Log` those of a handler."""
    provider = TracerProvider()
    own = logging.getLogger("tests.own")

    async def main(simulation: Simulation) -> tl.Message:
        seen: list[tl.Message] = []
        hooks = [tl.hooks.Log(), tl.hooks.Trace(provider.get_tracer("test"))]
        async with tl.connect(world=world(simulation), hooks=hooks) as bus:

            @bus.on("orders.*", retry=tl.Retry(attempts=2))
            async def bill(message: tl.Message) -> None:
                seen.append(message)
                own.info("billing")
                if len(seen) == 1:
                    raise ValueError("once")

            await bus.publish("orders.placed", 1)
            await bus.quiet()
        own.info("not about a message")
        return seen[0]

    with logged("trunkline.handlers", JsonLines()) as ours, logged("tests.own", TextLines()) as theirs:
        message = simulate(main)
    (failed,) = map(json.loads, ours.getvalue().splitlines())
    assert failed["message_id"] == message.id
    assert failed["topic"] == "orders.placed"
    assert message.trace is not None
    assert failed["trace_id"] == message.trace.split("-")[1]
    first, second, last = theirs.getvalue().splitlines()
    words = " ".join(f"{name}={value}" for name, value in about(message).items())
    assert first.endswith(f"INFO tests.own billing {words}")
    assert second.endswith(words)
    assert last.endswith("INFO tests.own not about a message")
