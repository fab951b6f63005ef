"""Mistakes of newcomers and users of other tools: each error says in one line what to write."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl

TROUBLESHOOTING = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


async def take(number: int) -> None: ...


async def subscribing(bus: tl.Bus, pattern: str = "a", **options: Any) -> None:
    async with bus.subscribe(pattern, **options):
        pass


async def publishing(bus: tl.Bus) -> None:
    await bus.publish("elsewhere", 1)


async def requesting(bus: tl.Bus) -> None:
    await bus.request("a", 1)


async def awaiting(what: Any) -> None:
    await what


async def iterating(what: Any) -> None:
    async for _ in what:
        pass


async def entering(bus: tl.Bus) -> None:
    with bus.subscribe("a"):
        pass


async def handling(bus: tl.Bus) -> None:
    bus.on("a", retry=3)(take)  # type: ignore[arg-type]


async def handling_slashes(bus: tl.Bus) -> None:
    bus.on("sensors/kitchen")(take)


SLIPS: list[tuple[Callable[[tl.Bus], Awaitable[object]], str]] = [
    (
        lambda bus: subscribing(bus, name="x", durable=True),
        "the memory broker does not offer durable topics: pass journal=DIRECTORY to connect, or start the hub with"
        " `trunkline up --journal DIRECTORY`",
    ),
    (
        lambda bus: bus.publish("a", 1, ttl=5),  # type: ignore[call-arg]
        "a message has no field 'ttl': did you mean 'ttl_s'?",
    ),
    (
        lambda bus: bus.request("a", 1, timeout=5),  # type: ignore[call-overload]
        "a message has no field 'timeout': did you mean 'timeout_s'?",
    ),
    (
        lambda bus: subscribing(bus, overflow="drop"),
        "bad settings: overflow must be one of block, drop_oldest, drop_newest, reject, not 'drop'",
    ),
    (
        handling,
        "bad settings: retry must be a Retry, for example Retry(attempts=…), not 3",
    ),
    (
        lambda bus: subscribing(bus, where="payload.x > 1 && payload.y"),
        "cannot use 'payload.x > 1 && payload.y' as a filter: invalid syntax at character 16:"
        " write `and` instead of `&&`",
    ),
    (
        lambda bus: subscribing(bus, "sensors/+/heat/#"),
        "topic 'sensors/+/heat/#' has a wildcard of MQTT or RabbitMQ: write 'sensors.*.heat.>'",
    ),
    (
        lambda bus: subscribing(bus, "orders.#"),
        "topic 'orders.#' has a wildcard of MQTT or RabbitMQ: write 'orders.>'",
    ),
    (
        lambda bus: subscribing(bus, "+"),
        "topic '+' has a wildcard of MQTT or RabbitMQ: write '*'",
    ),
    (
        lambda bus: subscribing(bus, "sensors.+.heat"),
        "topic 'sensors.+.heat' has a wildcard of MQTT or RabbitMQ: write 'sensors.*.heat'",
    ),
    (
        lambda bus: subscribing(bus, "sensors/*/heat"),
        "topic 'sensors/*/heat' has slashes beside a wildcard: dots separate tokens, write 'sensors.*.heat'",
    ),
    (
        lambda bus: bus.publish("sensors/kitchen/#", 1),
        "topic 'sensors/kitchen/#' has a wildcard: messages go to one topic, only subscriptions may use * and >",
    ),
    (
        lambda bus: bus.publish("sensors/+/heat", 1),
        "topic 'sensors/+/heat' has a wildcard: messages go to one topic, only subscriptions may use * and >",
    ),
    (
        lambda bus: bus.publish("sensors.+.heat", 1),
        "topic 'sensors.+.heat' has a wildcard: messages go to one topic, only subscriptions may use * and >",
    ),
    (
        lambda bus: bus.publish("sensors/kitchen", 1),
        "topic 'sensors/kitchen' has slashes: dots separate tokens, write 'sensors.kitchen'",
    ),
    (
        lambda bus: bus.publish_many("/sensors/kitchen", [1]),
        "topic '/sensors/kitchen' has slashes: dots separate tokens, write 'sensors.kitchen'",
    ),
    (
        lambda bus: bus.request("sensors/kitchen", 1),
        "topic 'sensors/kitchen' has slashes: dots separate tokens, write 'sensors.kitchen'",
    ),
    (
        lambda bus: subscribing(bus, "sensors/kitchen"),
        "topic 'sensors/kitchen' has slashes: dots separate tokens, write 'sensors.kitchen'",
    ),
    (
        handling_slashes,
        "topic 'sensors/kitchen' has slashes: dots separate tokens, write 'sensors.kitchen'",
    ),
    (
        lambda bus: bus.publish("orders.#", 1),
        "topic 'orders.#' has a wildcard: messages go to one topic, only subscriptions may use * and >",
    ),
    (
        lambda bus: asyncio.to_thread(asyncio.run, publishing(bus)),
        "the bus 'shop' belongs to another event loop: connect in the loop that uses it, or give threads"
        " bus.from_thread()",
    ),
    (
        lambda bus: asyncio.to_thread(asyncio.run, requesting(bus)),
        "the bus 'shop' belongs to another event loop: connect in the loop that uses it, or give threads"
        " bus.from_thread()",
    ),
    (
        lambda bus: asyncio.to_thread(asyncio.run, subscribing(bus)),
        "the bus 'shop' belongs to another event loop: connect in the loop that uses it, or give threads"
        " bus.from_thread()",
    ),
    (
        lambda bus: publishing(tl.connect("memory:", name="other")),
        "the bus 'other' is not open yet: write `async with connect(...) as bus:`, and use it inside that block",
    ),
    (
        lambda bus: subscribing(tl.connect(bus.broker, name="other")),
        "the bus 'other' is not open yet: write `async with connect(...) as bus:`, and use it inside that block",
    ),
    (
        lambda bus: awaiting(tl.connect("memory:")),
        "a bus cannot be awaited: write `async with connect(...) as bus:`",
    ),
    (
        lambda bus: awaiting(bus.subscribe("a")),
        "a subscription must be entered: write `async with bus.subscribe(...) as messages:`,"
        " and inside it `async for message in messages:`",
    ),
    (
        lambda bus: iterating(bus.subscribe("a")),
        "a subscription must be entered: write `async with bus.subscribe(...) as messages:`,"
        " and inside it `async for message in messages:`",
    ),
    (
        entering,
        "a subscription must be entered: write `async with bus.subscribe(...) as messages:`,"
        " and inside it `async for message in messages:`",
    ),
    (
        lambda bus: asyncio.to_thread(bus.from_thread),
        "call from_thread() in the event loop, and give the object it returns to the thread",
    ),
    (
        lambda bus: asyncio.to_thread(pickle.dumps, bus),
        "a bus cannot be sent to another process: connect there, and in Spark write with the sink,"
        ' df.writeStream.format("trunkline")',
    ),
    (
        lambda bus: asyncio.to_thread(tl.Settings, max_mesage_bytes=1),  # type: ignore[call-arg]
        "unknown setting 'max_mesage_bytes': did you mean 'max_message_bytes'?",
    ),
    (
        lambda bus: asyncio.to_thread(tl.Backpressure, timeout=1),  # type: ignore[call-arg]
        "unknown setting 'timeout': did you mean 'timeout_s'?",
    ),
]


@pytest.mark.parametrize(
    ("slip", "text"), SLIPS, ids=[f"{number}: {text[:40]}" for number, (_, text) in enumerate(SLIPS)]
)
def test_a_slip_says_what_to_write(slip: Callable[[tl.Bus], Awaitable[object]], text: str) -> None:
    async def main() -> None:
        async with tl.connect("memory:", name="shop") as bus:
            await bus.publish("a", 0)
            with pytest.raises(tl.TrunklineError) as error:
                await slip(bus)
            assert str(error.value) == text

    asyncio.run(main())


def test_a_bus_of_a_loop_that_has_ended_is_refused_on_a_topic_it_knows() -> None:
    clock = iter(range(1, 1_000_000_000_000, 1_000_000_000))
    bus = tl.connect("memory:", name="shop", world=tl.World(time_ns=lambda: next(clock)))

    async def first() -> None:
        await bus.__aenter__()
        await bus.publish("a", 1)

    async def second() -> None:
        with pytest.raises(tl.UsageError, match="the bus 'shop' belongs to another event loop"):
            await bus.publish("a", 1)

    with asyncio.Runner() as one:
        one.run(first())
        asyncio.run(second())
        one.run(bus.aclose())


def test_what_was_named_elsewhere_may_have_slashes() -> None:
    async def main() -> None:
        async with tl.connect("memory:") as bus, bus.subscribe(">") as messages:
            await bus.post(bus.message("a").replace(topic="plant/line1"))
            await bus.send("team/worker")
            assert [messages.try_recv().topic for _ in range(2)] == ["plant/line1", "_to.team/worker"]

    asyncio.run(main())


def test_a_publish_that_is_not_awaited_is_named_with_its_line() -> None:
    async def main() -> None:
        async with tl.connect("memory:") as bus:
            with pytest.warns(RuntimeWarning) as warned:
                bus.publish("a", 1)  # type: ignore[unused-coroutine]
            assert bus.history() == []
        (warning,) = warned
        assert str(warning.message) == "coroutine 'Bus.publish' was never awaited"
        assert warning.filename == __file__
        # The page says what to write instead.
        assert f"`RuntimeWarning: {warning.message}`" in TROUBLESHOOTING.read_text()

    asyncio.run(main())


async def test_slashes_beside_other_characters_are_part_of_a_token() -> None:
    async with tl.connect("memory:") as bus:
        for topic in ("files./tmp/a", "pages.<svg/onload=1"):
            async with bus.subscribe(topic) as stream:
                await bus.publish(topic, 1)
                message = await stream.recv()
                assert message is not None
                assert message.topic == topic
