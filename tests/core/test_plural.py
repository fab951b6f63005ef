"""Texts with a count are right for one thing, too."""

from __future__ import annotations

import logging

import pytest

import trunkline as tl
from trunkline.plural import counted
from trunkline.testing import Simulation, world


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (1234, "1,234 messages")]
)
def test_only_one_is_singular(number: int, text: str) -> None:
    assert counted(number, "message") == text


def test_a_plural_may_be_irregular() -> None:
    assert [counted(number, "delivery", "deliveries") for number in (1, 2)] == ["1 delivery", "2 deliveries"]


@pytest.mark.parametrize(("attempts", "text"), [(1, "after 1 attempt: "), (2, "after 2 attempts: ")])
async def test_attempts_in_the_log(
    attempts: int, text: str, simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    async with tl.connect(world=world(simulation)) as bus:

        @bus.on("t", retry=tl.Retry(attempts=attempts))
        async def fail(message: tl.Message) -> None:
            raise ValueError("wrong")

        with caplog.at_level(logging.ERROR, "trunkline.delivery"):
            await bus.publish("t")
            await bus.quiet()
    assert text in caplog.text
