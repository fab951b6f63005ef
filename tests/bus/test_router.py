from __future__ import annotations

import asyncio

import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline import Rule


def test_rules_filter_by_type_sender_recipient_topic_and_content() -> None:
    cases: dict[str, tuple[Rule, set[int]]] = {
        "all": (Rule(id="all", handler="h"), {0, 1, 2, 3}),
        "type": (Rule(id="type", handler="h", type=tl.MessageType.DIRECT), {2}),
        "sender": (Rule(id="sender", handler="h", sender="agent-*"), {1, 2}),
        "recipient": (Rule(id="recipient", handler="h", recipient="bob"), {2}),
        "topic": (Rule(id="topic", handler="h", topic="events.>"), {0, 1}),
        "where": (Rule(id="where", handler="h", where="payload >= 1 and priority > 60"), {3}),
        "several": (Rule(id="several", handler="h", topic="events.*", sender="agent-1"), {1}),
        "disabled": (Rule(id="disabled", handler="h", enabled=False), set()),
    }
    for rule, wanted in cases.values():

        async def main(bus: tl.Bus, rule: Rule = rule, wanted: set[int] = wanted) -> None:
            seen: set[int] = set()

            async def handle(n: int) -> None:
                seen.add(n)

            bus.router.register_handler("h", handle)
            bus.router.add_rule(rule)
            await bus.publish("events.a", 0)
            await bus.publish("events.b", 1, sender="agent-1")
            await bus.send("bob", 2, sender="agent-2")
            await bus.publish("other", 3, priority=80)
            await asyncio.sleep(1)
            assert seen == wanted, rule.id

        on_bus(main)


def test_every_matching_handler_once_in_order_of_priority() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[str] = []

        for name in ("audit", "bill", "ship"):

            async def handle(name: str = name) -> None:
                seen.append(name)

            bus.router.register_handler(name, handle)
        bus.router.add_rule(Rule(id="low", handler="ship", priority=1))
        bus.router.add_rule(Rule(id="high", handler="audit", priority=10))
        bus.router.add_rule(Rule(id="again", handler="audit", priority=5, topic="t"))
        bus.router.add_rule(Rule(id="middle", handler="bill", priority=5))
        assert [rule.id for rule in bus.router.rules()] == ["high", "again", "middle", "low"]
        message_id = await bus.publish("t")
        await until(lambda: len(seen) == 3)
        assert sorted(seen) == ["audit", "bill", "ship"]
        assert {outcome.subscriber for outcome in (await bus.explain(message_id)).outcomes} == {"audit", "bill", "ship"}
        message = bus.message("t")
        assert [rule.id for rule in bus.router.matching(message)] == ["high", "again", "middle", "low"]
        assert await bus.router.route(message) == ["audit", "bill", "ship"]

    on_bus(main)


def test_rules_come_and_go_while_running() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[int] = []

        async def handle(n: int) -> None:
            seen.append(n)

        bus.router.register_handler("h", handle)
        await bus.publish("t", 0)
        bus.router.add_rule(Rule(id="r", handler="h"))
        await bus.publish("t", 1)
        bus.router.enable("r", False)
        await bus.publish("t", 2)
        bus.router.enable("r")
        await bus.publish("t", 3)
        bus.router.remove_rule("r")
        await bus.publish("t", 4)
        await until(lambda: len(seen) == 2)
        assert seen == [1, 3]

    on_bus(main)


def test_failing_or_slow_handler_does_not_stop_the_others() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[int] = []

        async def fails() -> None:
            raise RuntimeError("broken")

        async def slow() -> None:
            await asyncio.sleep(1000)

        async def works(n: int) -> None:
            seen.append(n)

        bus.router.register_handler("fails", fails, retry=tl.Retry(attempts=1))
        bus.router.register_handler("slow", slow, overflow="drop_oldest", capacity=2)
        bus.router.register_handler("works", works)
        for name in bus.router.handlers():
            bus.router.add_rule(Rule(id=name, handler=name))
        ids = await bus.publish_many("t", range(10))
        await until(lambda: len(seen) == 10)
        assert len(bus.dead_letters.find(subscriber="fails")) == 10
        fates = {outcome.subscriber: outcome.fate for outcome in (await bus.explain(ids[1])).outcomes}
        assert fates == {"fails": tl.Fate.DEAD, "slow": tl.Fate.DROPPED, "works": tl.Fate.DELIVERED}

    on_bus(main, settings=tl.Settings(drain_s=0.1))


def test_full_blocking_handler_slows_the_publisher() -> None:
    async def main(bus: tl.Bus) -> None:
        async def slow() -> None:
            await asyncio.sleep(1)

        bus.router.register_handler("slow", slow, capacity=1)
        bus.router.add_rule(Rule(id="r", handler="slow"))
        loop = asyncio.get_running_loop()
        for _ in range(5):
            await bus.publish("t")
        assert loop.time() >= 2.9

    on_bus(main)


def test_mistakes_are_named() -> None:
    async def main(bus: tl.Bus) -> None:
        async def handle() -> None: ...

        with pytest.raises(tl.UnknownHandler, match="'nobody'"):
            bus.router.add_rule(Rule(id="r", handler="nobody"))
        bus.router.register_handler("h", handle)
        with pytest.raises(tl.DuplicateName):
            bus.router.register_handler("h", handle)
        bus.router.add_rule(Rule(id="r", handler="h"))
        with pytest.raises(tl.DuplicateName):
            bus.router.add_rule(Rule(id="r", handler="h"))
        with pytest.raises(tl.UsageError, match="there are: r"):
            bus.router.remove_rule("x")
        with pytest.raises(tl.InvalidExpression):
            bus.router.add_rule(Rule(id="bad", handler="h", where="import os"))
        with pytest.raises(tl.InvalidTopic):
            Rule(id="bad", handler="h", topic="a..b")
        with pytest.raises(tl.UnknownHandler):
            await bus.router.remove_handler("nobody")
        await bus.router.remove_handler("h")
        assert bus.router.rules() == []
        assert bus.router.handlers() == []

    on_bus(main)
