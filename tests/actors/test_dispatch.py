"""Messages are dispatched by the class of their payload, not by its bare name. The work of an actor is a span."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import trunkline as tl
from tests.actors import orders_here, orders_there
from tests.actors.people import Clerk, shop
from tests.hub.hubs import until
from trunkline.actors import Actor, ActorSystem, Directive, Restart, handles
from trunkline.delivery.dead_letters import Cause
from trunkline.testing import Simulation, world

pytestmark = pytest.mark.usefixtures("both_ways")


class Both(Actor):
    @handles(orders_here.Order)
    async def here(self, order: orders_here.Order) -> Any:
        return ["here", type(order).__name__, order.what, order.gift]

    @handles(orders_there.Order)
    async def there(self, order: orders_there.Order) -> Any:
        return ["there", type(order).__name__, order.what]

    async def receive(self, message: Any) -> Any:
        return ["rest", message]


class There(Actor):
    async def receive(self, order: orders_there.Order) -> str:
        return order.what


class Either(Actor):
    async def receive(self, order: orders_there.Order | None) -> str:
        return "none" if order is None else order.what


class OnlyThere(Actor):
    @handles()
    async def order(self, order: orders_there.Order) -> str:
        return order.what


async def test_two_classes_of_one_name(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        both = await system.spawn(Both, name="both")
        assert await both.ask(orders_here.Order("bread", True)) == ["here", "Order", "bread", True]
        assert await both.ask(orders_there.Order("bread")) == ["there", "Order", "bread"]
        # By its bare name, from a program that has neither, it could be either.
        assert await both.ask({"what": "bread"}, schema="Order") == ["rest", {"what": "bread"}]


@pytest.mark.parametrize("kind", [There, OnlyThere])
async def test_no_field_goes_missing(simulation: Simulation, kind: type[Actor]) -> None:
    """An actor with a handler for the other class raises an error, instead of decoding one as the other."""
    async with shop(simulation) as (bus, system):
        actor = await system.spawn(kind, name="actor")
        with pytest.raises(tl.RequestFailed, match=r"orders_here\.Order.*only for tests\.actors\.orders_there\.Order"):
            await actor.ask(orders_here.Order("bread", True))
        (letter,) = bus.dead_letters
        assert letter.cause is Cause.INVALID_PAYLOAD
        assert await actor.ask(orders_there.Order("bread")) == "bread"
        # Plain values, and a sender that knows no more than a bare name.
        assert await actor.ask({"what": "rolls"}) == "rolls"
        assert await actor.ask({"what": "rolls"}, schema="Order") == "rolls"
        assert system.actors()[0].restarts == 0


async def test_a_subclass_is_what_it_is(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        both = await system.spawn(Both, name="both")
        for _ in range(2):
            assert await both.ask(orders_here.LargeOrder("bread", True, 3)) == ["here", "LargeOrder", "bread", True]


async def test_classes_that_call_themselves_the_same_are_the_same(simulation: Simulation) -> None:
    class Sharing(Actor):
        async def receive(self, shared: orders_there.Shared) -> str:
            return shared.what

    async with shop(simulation) as (_, system):
        sharing = await system.spawn(Sharing, name="sharing")
        either = await system.spawn(Either, name="either")
        assert await sharing.ask(orders_here.Shared("bread")) == "bread"
        assert await either.ask(None) == "none"
        assert await either.ask(orders_there.Order("bread")) == "bread"


async def test_an_actors_work_is_a_span(simulation: Simulation) -> None:
    """It continues the trace of the message, which includes all sends and requests of the actor."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    class Front(Actor):
        async def receive(self, message: str) -> Any:
            if message == "fail":
                raise ValueError("oh")
            return await self.context.request("shop.back", message)

    hooks = [tl.hooks.Trace(tracer)]
    async with tl.connect(world=world(simulation), hooks=hooks) as bus, ActorSystem(bus, "shop") as system:
        front = await system.spawn(Front, name="front")
        await system.spawn(Clerk, [], name="back")
        with tracer.start_as_current_span("outside") as outside:
            assert await front.ask("hello") == "hello"
        with pytest.raises(tl.RequestFailed):
            await front.ask("fail")
    spans = exporter.get_finished_spans()

    def found(name: str, topic: str) -> list[Any]:
        return [
            each for each in spans if (each.name, each.attributes.get("messaging.destination.name")) == (name, topic)
        ]

    handled, failed = found("handle _to.>", "_to.shop.front")
    (asked,) = found("request", "_to.shop.back")
    (answered,) = found("handle _to.>", "_to.shop.back")
    assert handled.context.trace_id == outside.get_span_context().trace_id
    assert answered.context.trace_id == handled.context.trace_id
    assert asked.parent.span_id == handled.context.span_id
    assert handled.attributes["messaging.destination.name"] == "_to.shop.front"
    assert failed.status.status_code.name == "ERROR"
    assert failed.events[0].name == "exception"


@pytest.mark.parametrize("on_error", [Directive.RESTART, Directive.RESUME])
async def test_each_attempt_that_is_repeated_is_a_span(simulation: Simulation, on_error: Directive) -> None:
    """For a message that is redelivered after a restart. The last attempt is a dead letter."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    class Fragile(Actor):
        async def receive(self, message: str) -> None:
            raise ValueError("oh")

    hook = tl.hooks.Trace(provider.get_tracer("test"))
    async with tl.connect(world=world(simulation), hooks=[hook]) as bus, ActorSystem(bus, "shop") as system:
        fragile = await system.spawn(
            Fragile,
            name="fragile",
            restart=Restart(times=5, within_s=60),
            failed="retry",
            attempts=3,
            on_error={Exception: on_error},
        )
        await fragile.tell("hello")
        await until(lambda: len(bus.dead_letters) == 1, "it has given up")
    spans = exporter.get_finished_spans()
    topic = "messaging.destination.name"
    (published,) = [
        each for each in spans if each.name == "publish" and (each.attributes or {})[topic] == "_to.shop.fragile"
    ]
    retried = [span for span in spans if span.name.startswith("retry ")]
    assert [(span.attributes or {})["messaging.trunkline.attempt"] for span in retried] == [1, 2]
    assert {(span.attributes or {})["error.type"] for span in retried} == {"ValueError"}
    pauses = [(span.attributes or {})["messaging.trunkline.pause_s"] for span in retried]
    assert all(pause == 0 for pause in pauses) == (on_error is Directive.RESUME)
    dead = [span for span in spans if span.name == "dead letter"]
    assert {span.context.trace_id for span in (*retried, *dead)} == {published.context.trace_id}
