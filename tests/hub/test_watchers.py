"""Notifications about changed subscriptions go to clients with matching topics, found without scanning the others."""

from __future__ import annotations

import gc
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from tests.hub.hubs import Place, connection_of
from tests.hub.test_admission import Raw, hub_with, subscribe
from trunkline import columns
from trunkline.hub.hub import Hub
from trunkline.hub.watchers import Watchers
from trunkline.testing import Simulation, simulate, world
from trunkline.topic import matches
from trunkline.wire import control, frames
from trunkline.wire.frames import PublishHead

tokens = st.sampled_from(["a", "b", "c"])
topics = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda words, rest: ".".join([*words, *rest]),
    st.lists(st.sampled_from(["a", "b", "c", "*"]), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
) | st.just(">")


@given(st.lists(st.tuples(st.booleans(), topics, st.integers(0, 2))), st.lists(patterns, min_size=1, max_size=3))
def test_finds_what_matches_whatever_came_and_went(steps: list[tuple[bool, str, int]], wanted: list[str]) -> None:
    watchers: Watchers[int] = Watchers()
    known: dict[str, set[int]] = {}
    for comes, topic, who in steps:
        if comes:
            watchers.add(topic, who)
            known.setdefault(topic, set()).add(who)
        else:
            watchers.discard(topic, who)
            known.get(topic, set()).discard(who)
    expected = {
        topic: there for topic, there in known.items() if there and any(matches(each, topic) for each in wanted)
    }
    assert watchers.matching(*wanted) == expected


def test_nothing_is_left_of_who_is_gone() -> None:
    watchers: Watchers[int] = Watchers()
    for topic in ("a", "a.b", "a.b.c", "d"):
        watchers.add(topic, 1)
    for topic in ("a.b", "a", "d", "a.b.c", "a.b.x"):
        watchers.discard(topic, 1)
    assert watchers._root.below == {}


@pytest.mark.parametrize("pattern", ["plant.line7.heat", "plant.line7.*", "plant.line7.>", "*.line7.heat", "other.x"])
def test_a_subscription_costs_what_matches_not_what_is_watched(pattern: str) -> None:
    """Counted in calls and lines: ten thousand topics cost as much as ten."""

    def steps(many: int) -> int:
        watchers: Watchers[int] = Watchers()
        for number in range(many):
            watchers.add(f"plant.line{number}.heat", 1)
        counted = 0

        def count(*_: object) -> object:
            nonlocal counted
            counted += 1
            return count

        before = sys.gettrace()
        # Otherwise finalizers of others may run, and be counted.
        gc.disable()
        sys.settrace(count)  # type: ignore[arg-type]
        try:
            found = watchers.matching(pattern)
        finally:
            sys.settrace(before)
            gc.enable()
        assert list(found) == ([] if pattern == "other.x" else ["plant.line7.heat"])
        return counted

    assert steps(10_000) == steps(10)


async def test_publishers_hear_of_subscribers_and_only_where_they_publish(simulation: Simulation) -> None:
    place = Place(world(simulation))
    hub: Hub = await place.start()
    asked: list[str] = []
    info = hub.info

    def counted(topic: str) -> control.TopicInfo:
        asked.append(topic)
        return info(topic)

    async with place.bus("publisher") as publisher, place.bus("subscriber") as subscriber:
        for number in range(50):
            await publisher.publish(f"t.{number}", b"")
        assert isinstance(publisher.broker, tl.HubBroker)
        hub.info = counted  # type: ignore[method-assign]
        for pattern, there in (("t.7", ["t.7"]), ("t.9.x", []), ("*.8", ["t.8"]), ("other.>", [])):
            asked.clear()
            async with subscriber.subscribe(pattern):
                assert asked == there
                await publisher.flush()
                heard = [
                    topic for topic, lane in publisher.broker.lanes.items() if lane.has_subscribers and topic[0] == "t"
                ]
                assert heard == there
            await connection_of(subscriber).sync()
            assert asked == 2 * there, "and again when it is gone"
    await place.stop()


@pytest.mark.parametrize("group", [False, True], ids=["plain", "group"])
def test_many_subscriptions_to_a_watched_topic_do_not_stop_the_hub(group: bool) -> None:
    """Each one led to a search for all of them: 5,000 took more than ten seconds, in which the hub served nobody."""
    count = 3000

    async def play(simulation: Simulation) -> None:
        async with hub_with(simulation) as hub:
            publisher, attacker = await Raw.open(hub), await Raw.open(hub)
            await publisher.greet(name="publisher")
            await attacker.greet(name="attacker")
            publisher.say(control.Topic(id=1, topic="a.b"))
            assert not (await publisher.hear(control.TopicInfo)).heard
            began = time.process_time()
            attacker.say(
                *(subscribe(each, pattern="a.>", group=f"g{each}" if group else None) for each in range(count))
            )
            for _ in range(count):
                await attacker.hear(control.Subscribed)
            assert (await publisher.hear(control.TopicInfo)).heard
            attacker.say(*(control.Unsubscribe(id=each + 1, subscription=each) for each in range(count)))
            for _ in range(count):
                await attacker.hear(control.Done)
            assert not (await publisher.hear(control.TopicInfo)).heard
            assert time.process_time() - began < 5
            assert publisher.heard.empty()

    simulate(play)


async def test_many_links_do_not_stop_the_hub(simulation: Simulation) -> None:
    """Each link matched the topics of all others, and a publish looked at each pair: 3,000 links took a second."""
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        await raw.greet()
        raw.say(*(control.Link(id=each, pattern="t.>", topic=f"t.{each}") for each in range(1, 6001)))
        raw.say(subscribe(1, pattern="t.6000"))
        await raw.hear(control.Subscribed)
        began = time.process_time()
        raw.send(frames.publish(PublishHead(1, "t.x", 1), columns.encode([tl.Message(id="1", topic="t.x")], [0])))
        await raw.take()
        assert time.process_time() - began < 1


async def test_many_questions_do_not_stop_the_hub(simulation: Simulation) -> None:
    """The search for each message takes milliseconds: they are not all done before anybody else is served."""
    count = 200
    async with hub_with(simulation) as hub:
        raw, other = await Raw.open(hub), await Raw.open(hub)
        await raw.greet(name="raw")
        await other.greet(name="other")
        raw.say(*(control.Explain(id=each, message_id="unknown") for each in range(1, count + 1)))
        for _ in range(3):
            other.say(control.Heartbeat(id=1))
            await other.hear(control.Beat)
        assert raw.heard.qsize() < count
        answers = {(await raw.hear(control.Error)).code for _ in range(count)}
        assert answers == {"unknown"}
