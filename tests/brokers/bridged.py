"""Checks that two buses joined by bridges behave as one."""

from __future__ import annotations

import pytest

import trunkline as tl

TIMEOUT_S = 60.0


async def behave_as_one_bus(one: tl.Bus, other: tl.Bus) -> None:
    """`orders.>`, `double`, `fails` and direct messages are mirrored. The first bus is named client0."""
    # Messages: once on each side, unchanged, in order, and none comes back.
    async with one.subscribe("orders.>") as here, other.subscribe("orders.>") as there:
        sent = [await one.publish("orders.placed", number, headers={"a": "b"}) for number in range(100)]
        back = await other.publish("orders.sent", "from the other")
        for stream in (here, there):
            got = [await stream.recv() for _ in range(101)]
            assert all(message is not None for message in got)
            placed = [message for message in got if message is not None and message.topic == "orders.placed"]
            assert [message.id for message in placed] == sent
            assert [message.decode() for message in placed] == list(range(100))
            assert {(message.headers or {})["a"] for message in placed} == {"b"}
            assert [each.id for each in got if each is not None and each.topic == "orders.sent"] == [back]
        # What is not mirrored stays where it is.
        await one.publish("private", 1)
        await one.publish("orders.end", "end")
        assert (await there.recv()).topic == "orders.end"  # type: ignore[union-attr]
        assert (await here.recv()).topic == "orders.end"  # type: ignore[union-attr]
        assert here.depth == there.depth == 0

    # Requests and direct messages.
    @other.on("double")
    async def double(number: int) -> int:
        return 2 * number

    @other.on("fails")
    async def fail(number: int) -> int:
        raise ValueError("no")

    async with other.subscribe(tl.endpoint("ann")) as mail:
        await other.flush()
        assert await one.request("double", 21, reply=int, timeout_s=TIMEOUT_S) == 42
        with pytest.raises(tl.RequestFailed, match="no"):
            await one.request("fails", 1, timeout_s=TIMEOUT_S)
        await one.send("ann", "hello")
        letter = await mail.recv()
        assert letter is not None
        assert (letter.decode(), letter.sender) == ("hello", "client0")
