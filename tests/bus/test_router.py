from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline import Rule
from trunkline.journal import Reader


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


def test_messages_routed_by_hand_are_tried_again_one_by_one() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[int] = []

        async def fails_once(n: int, message: tl.Message) -> None:
            if not message.attempts:
                raise RuntimeError("not yet")
            seen.append(n)

        bus.router.register_handler("h", fails_once, concurrency=3)
        bus.router.add_rule(Rule(id="r", handler="h"))
        messages = [bus.message("t", n) for n in range(3)]
        for message in messages:
            assert await bus.router.route(message) == ["h"]
        await bus.publish("t", 3)
        await until(lambda: len(seen) == 4)
        assert sorted(seen) == [0, 1, 2, 3]
        assert bus.accounts()["h"] == tl.Account(accepted=4, delivered=4)
        assert [message.seq for message in messages] == [0, 0, 0]

    on_bus(main)


def test_a_message_routed_by_hand_that_fails_is_a_dead_letter_of_its_own() -> None:
    async def main(bus: tl.Bus) -> None:
        well = False

        async def fails(n: int) -> None:
            if not well:
                raise RuntimeError(n)

        bus.router.register_handler("h", fails, retry=tl.Retry(attempts=1))
        bus.router.add_rule(Rule(id="r", handler="h"))
        for n in range(3):
            await bus.router.route(tl.Message(topic="t", payload=n))
        await until(lambda: len(bus.dead_letters) == 3)
        assert sorted(letter.message.decode() for letter in bus.dead_letters.find()) == [0, 1, 2]
        assert all(letter.message.id for letter in bus.dead_letters.find())
        well = True
        assert len((await bus.replay_dead()).ids) == 3
        await bus.quiet()
        assert bus.accounts()["h"] == tl.Account(accepted=3, delivered=3)

    on_bus(main)


def test_a_message_that_no_rule_fits_is_named_with_the_rules() -> None:
    async def main(bus: tl.Bus) -> None:
        async def handle() -> None: ...

        message = bus.message("orders")
        with pytest.raises(tl.NotRouted, match=f"route message {message.id} on orders: .*there are: none"):
            await bus.router.route(message)
        bus.router.register_handler("h", handle)
        bus.router.add_rule(Rule(id="low", handler="h", topic="bills"))
        bus.router.add_rule(Rule(id="off", handler="h", enabled=False))
        bus.router.add_rule(Rule(id="high", handler="h", priority=3, where="priority > 60"))
        with pytest.raises(tl.NotRouted, match=r"there are: high, low, off \(disabled\)") as caught:
            await bus.router.route(message)
        assert caught.value.rules == ["high", "low", "off (disabled)"]
        assert await bus.router.route(message.replace(priority=80)) == ["h"]

    on_bus(main)


def test_with_a_journal_a_message_routed_by_hand_takes_no_number_of_the_journal(tmp_path: Path) -> None:
    """Its dead letters are kept together with those of an earlier run."""

    async def main() -> tuple[int, int]:
        async with tl.connect("memory:", journal=tmp_path) as bus:

            async def fails(n: int) -> None:
                if n == 1:
                    raise RuntimeError

            bus.router.register_handler("h", fails, retry=tl.Retry(attempts=1))
            bus.router.add_rule(Rule(id="r", handler="h"))
            for n in range(3):
                await bus.router.route(tl.Message(topic="orders", payload=n))
            await bus.publish("orders", 3)
            await bus.quiet()
            return bus.broker.sequence.last, len(bus.dead_letters)

    assert asyncio.run(main()) == (1, 1)
    assert asyncio.run(main()) == (2, 2)
    with Reader(tmp_path) as reader:
        assert [message.seq for message in reader.messages()] == [1, 2]
