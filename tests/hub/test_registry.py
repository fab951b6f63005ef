"""The registry, without a hub: rights, notifications, and what remains when a member leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import ProtocolError
from trunkline.registry.channel import Effect
from trunkline.registry.registry import Registry, RegistryLimits, Who
from trunkline.topic import matches
from trunkline.wire import control
from trunkline.wire.control import ChannelInfo, Config, Qos

ALICE = Who("s1", "alice's sensor", "alice")
BOB = Who("s2", "bob's screen", "bob")
CAROL = Who("s3", "carol's desk", "carol")
ROOT = Who("s4", "root's shell", "root", administers=True)


def producer(channel: str = "c", hash: str = "", **more: Any) -> control.ProducerRegister:
    return control.ProducerRegister(id=1, channel=channel, schema_hash=hash, **more)


def consumer(channel: str = "c", id: str = "k1", hash: str = "", **more: Any) -> control.ConsumerRegister:
    return control.ConsumerRegister(id=1, channel=channel, consumer_id=id, expected_schema_hash=hash, **more)


def create(channel: str = "c", pattern: str = "", hash: str = "", **more: Any) -> control.ChannelCreate:
    return control.ChannelCreate(id=1, channel=channel, pattern=pattern, schema_hash=hash, **more)


def told(effect: Effect) -> list[tuple[str, str, str]]:
    return [(session, said.event, said.name) for session, said in effect.notices]


def info(registry: Registry, name: str = "c") -> ChannelInfo:
    return registry.known(name).info(whole=True)


def refused(step: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ProtocolError) as caught:
        step()
    return caught.value.code, caught.value.text


def test_a_producer_brings_its_channel_with_it() -> None:
    registry = Registry()
    config = Config(policy="RingBuffer", capacity=10, page_size=4096)
    said = producer("sensor_data", "abc123", schema_version="1.0.0", config=config, shm_name="/pylabhub_sensor_data")
    effect = registry.register_producer(ALICE, said, 5)
    assert (effect.changed, effect.patterns, effect.notices) == (True, ["sensor_data"], [])
    found = registry.known("sensor_data").discovered(7)
    assert (found.re, found.channel, found.status) == (7, "sensor_data", "active")
    assert (found.shm_name, found.schema_hash, found.schema_version) == ("/pylabhub_sensor_data", "abc123", "1.0.0")
    assert [(each.name, each.identity, each.since_ns, each.config) for each in found.producers] == [
        ("alice's sensor", "alice", 5, config)
    ]
    assert info(registry, "sensor_data").owner == "alice"


def test_producers_find_consumers_and_the_reverse() -> None:
    registry = Registry()
    registry.register_producer(ALICE, producer(), 1)
    effect = registry.register_consumer(BOB, consumer(metadata={"room": 3}), 2)
    assert told(effect) == [("s1", "consumer_joined", "k1")]
    assert told(registry.register_producer(CAROL, producer(), 3)) == [
        ("s1", "producer_joined", "carol's desk"),
        ("s2", "producer_joined", "carol's desk"),
    ]
    (found,) = info(registry).consumers
    assert (found.name, found.identity, found.metadata) == ("k1", "bob", {"room": 3})
    assert told(registry.left("s2")) == [("s1", "consumer_left", "k1"), ("s3", "consumer_left", "k1")]
    assert told(registry.unregister("s3", "producer", "c")) == [("s1", "producer_left", "carol's desk")]
    assert not registry.unregister("s3", "producer", "c").changed


def test_saying_it_twice_changes_nothing() -> None:
    registry = Registry()
    registry.register_producer(ALICE, producer(), 1)
    registry.register_consumer(BOB, consumer(), 1)
    assert not registry.register_producer(ALICE, producer(), 2).changed
    assert not registry.register_consumer(BOB, consumer(), 2).changed
    effect = registry.register_producer(ALICE, producer(metadata={"a": 1}), 3)
    assert effect.changed
    assert not effect.notices
    assert [each.since_ns for each in info(registry).producers] == [1]


def test_a_consumer_that_comes_back_is_moved_and_not_lost_with_its_old_session() -> None:
    registry = Registry()
    registry.register_consumer(BOB, consumer(), 1)
    again = BOB._replace(session="s9")
    assert registry.register_consumer(again, consumer(), 2).changed
    assert not registry.left("s2").notices
    assert [each.name for each in info(registry).consumers] == ["k1"]
    assert refused(lambda: registry.register_consumer(CAROL, consumer(), 3)) == (
        "exists",
        "c already has a consumer k1, of bob: use another id",
    )
    registry.left("s9")
    assert len(registry) == 0


def test_what_came_by_itself_goes_with_the_last() -> None:
    registry = Registry()
    registry.register_producer(ALICE, producer(), 1)
    registry.register_consumer(BOB, consumer(), 1)
    assert registry.left("s1").patterns == []
    assert registry.known("c").discovered(1).status == "idle"
    assert registry.left("s2").patterns == ["c"]
    assert refused(lambda: registry.known("c")) == ("unknown_channel", "there is no channel c")
    assert registry.find("c") is None


def test_what_was_created_stays() -> None:
    registry = Registry()
    registry.create(ALICE, create(), 1)
    registry.register_producer(ALICE, producer(), 1)
    registry.left("s1")
    assert info(registry).owner == "alice"
    assert not registry.create(ALICE, create(), 2).changed
    assert refused(lambda: registry.create(ALICE, create(description="other"), 2))[0] == "exists"
    assert refused(lambda: registry.create(BOB, create(), 2))[0] == "exists"


def test_only_its_owner_or_an_administrator_destroys_it() -> None:
    registry = Registry()
    registry.create(ALICE, create(), 1)
    registry.register_producer(BOB, producer(), 1)
    registry.register_consumer(CAROL, consumer(), 1)
    assert refused(lambda: registry.destroy(BOB, "c")) == ("not_owner", "the channel c belongs to alice")
    effect = registry.destroy(ALICE, "c")
    assert told(effect) == [("s2", "destroyed", ""), ("s3", "destroyed", "")]
    assert effect.patterns == ["c"]
    assert refused(lambda: registry.destroy(ALICE, "c"))[0] == "unknown_channel"
    assert not registry.left("s2").notices
    registry.create(ALICE, create(), 2)
    registry.destroy(ROOT, "c")
    assert len(registry) == 0


def test_schemas_must_be_the_same() -> None:
    registry = Registry()
    registry.register_producer(ALICE, producer(hash="aaa"), 1)
    code, text = refused(lambda: registry.register_producer(BOB, producer(hash="bbb"), 1))
    assert code == "schema_mismatch"
    assert text == "schemas differ on c: the channel has aaa, the producer has bbb"
    code, text = refused(lambda: registry.register_consumer(BOB, consumer(hash="bbb"), 1))
    assert (code, text) == ("schema_mismatch", "schemas differ on c: the channel has aaa, the consumer expects bbb")
    registry.register_consumer(BOB, consumer(hash="aaa"), 1)
    registry.register_consumer(CAROL, consumer(id="k2"), 1)
    assert registry.register_producer(ALICE, producer(hash="ccc"), 2).patterns == ["c"], (
        "its only producer may change it"
    )
    assert [each.name for each in info(registry).consumers] == ["k2"]


def test_a_channel_without_a_schema_has_none_for_who_expects_one() -> None:
    registry = Registry()
    registry.register_producer(ALICE, producer(), 1)
    code, text = refused(lambda: registry.register_consumer(BOB, consumer(hash="bbb"), 1))
    assert (code, text) == ("schema_mismatch", "schemas differ on c: the channel has none, the consumer expects bbb")


def test_consumers_may_come_first_and_are_told_if_it_is_not_what_they_wait_for() -> None:
    registry = Registry()
    registry.register_consumer(BOB, consumer(id="k1", hash="aaa"), 1)
    registry.register_consumer(CAROL, consumer(id="k2", hash="bbb"), 1)
    assert info(registry).owner == ""
    effect = registry.register_producer(ALICE, producer(hash="aaa"), 2)
    assert told(effect) == [
        ("s2", "producer_joined", "alice's sensor"),
        ("s3", "producer_joined", "alice's sensor"),
        ("s3", "schema_mismatch", "k2"),
    ]
    assert [each.name for each in info(registry).consumers] == ["k1"]
    assert info(registry).owner == "alice"
    assert not registry.left("s3").notices


def test_a_channel_that_came_by_itself_can_be_made_to_stay() -> None:
    registry = Registry()
    registry.register_producer(ALICE, producer(hash="aaa"), 1)
    assert refused(lambda: registry.create(BOB, create(), 1))[0] == "not_owner"
    assert refused(lambda: registry.create(ALICE, create(hash="bbb"), 1))[0] == "schema_mismatch"
    effect = registry.create(ALICE, create(pattern="c.>", hash="aaa", qos=Qos(priority=75)), 2)
    assert effect.patterns == ["c", "c.>"]
    assert registry.find("c") is None
    found = registry.find("c.x")
    assert found is not None
    assert (found.name, found.qos.priority, found.explicit) == ("c", 75, True)
    registry.left("s1")
    assert len(registry) == 1


def test_suspicion_is_told_once_and_taken_back() -> None:
    registry = Registry()
    registry.register_producer(ALICE, producer(), 1)
    registry.register_producer(BOB, producer(shm_name="/second"), 2)
    registry.register_consumer(ALICE, consumer(), 1)
    effect = registry.suspect("s1", True)
    assert told(effect) == [("s2", "producer_suspected", "alice's sensor"), ("s2", "consumer_suspected", "k1")]
    assert not registry.suspect("s1", True).notices
    found = registry.known("c").discovered(1)
    assert [each.status for each in found.producers] == ["suspected", "active"]
    assert (found.status, found.shm_name) == ("active", "/second")
    registry.suspect("s2", True)
    assert registry.known("c").discovered(1).status == "suspected"
    assert told(registry.suspect("s1", False))[0] == ("s2", "producer_recovered", "alice's sensor")
    assert not registry.suspect("nobody", True).notices


@pytest.mark.parametrize(
    ("topic", "name"),
    [("a.b.c", "exact"), ("a.b.d", "star"), ("a.x.c", "rest"), ("b.b.c", "all"), ("x", "x"), ("_reply.x", None)],
)
def test_the_pattern_that_says_most_counts(topic: str, name: str | None) -> None:
    registry = Registry()
    for channel, pattern in {"all": ">", "rest": "a.>", "star": "a.b.*", "exact": "a.b.c", "x": ""}.items():
        registry.create(ALICE, create(channel, pattern), 1)
    found = registry.find(topic)
    assert (None if found is None else found.name) == name
    assert registry.find(topic) is found


def test_topics_belong_to_one_channel() -> None:
    registry = Registry()
    registry.create(ALICE, create("one", "a.>"), 1)
    assert refused(lambda: registry.create(BOB, create("two", "a.>"), 1)) == (
        "exists",
        "the topics a.> belong to the channel one already",
    )
    registry.create(ALICE, create("three", "b"), 1)
    assert refused(lambda: registry.register_producer(BOB, producer("b"), 1))[0] == "exists"
    assert [channel.name for channel in registry.select("*")] == ["one", "three"]
    registry.destroy(ALICE, "one")
    registry.create(BOB, create("two", "a.>"), 1)


@pytest.mark.parametrize("name", ["", "a b", "a.*", "_to.x", "_x"])
def test_names_are_like_topics(name: str) -> None:
    registry = Registry()
    for step in (
        lambda: registry.create(ALICE, create(name), 1),
        lambda: registry.register_producer(ALICE, producer(name), 1),
        lambda: registry.register_consumer(ALICE, consumer(name), 1),
    ):
        assert refused(step)[0] == "invalid_topic"
    assert len(registry) == 0


def test_it_is_bounded() -> None:
    registry = Registry(RegistryLimits(channels=2, peers=4, registrations=3, request_bytes=250))
    assert refused(lambda: registry.register_producer(ALICE, producer(metadata={"a": "x" * 249}), 1))[0] == "too_large"
    assert refused(lambda: registry.register_producer(ALICE, producer(shm_name="x" * 249), 1))[0] == "too_large"
    assert refused(lambda: registry.create(ALICE, create(description="x" * 249), 1))[0] == "too_large"
    for n in range(3):
        registry.register_consumer(ALICE, consumer(id=f"k{n}"), 1)
    assert refused(lambda: registry.register_consumer(ALICE, consumer(id="k3"), 1))[0] == "too_many"
    assert refused(lambda: registry.register_producer(ALICE, producer("d"), 1))[0] == "too_many"
    registry.register_consumer(ALICE, consumer(id="k1"), 2)
    registry.register_producer(CAROL, producer(), 1)
    assert refused(lambda: registry.register_producer(BOB, producer(), 1))[0] == "too_many"
    registry.register_producer(BOB, producer("d"), 1)
    assert refused(lambda: registry.register_producer(BOB, producer("e"), 1))[0] == "too_many"
    assert refused(lambda: registry.register_consumer(BOB, consumer(id=""), 1))[0] == "malformed"


# Whatever happens, in whatever order

WHO = st.sampled_from([ALICE, BOB, CAROL, ROOT])
NAMES = st.sampled_from(["a", "b", "a.b"])
HASHES = st.sampled_from(["", "h1", "h2"])
STEPS = st.one_of(
    st.tuples(st.just("produce"), WHO, NAMES, HASHES),
    st.tuples(st.just("consume"), WHO, NAMES, HASHES),
    st.tuples(st.just("create"), WHO, NAMES, st.sampled_from(["", "a.*", ">"])),
    st.tuples(st.just("destroy"), WHO, NAMES, st.just("")),
    st.tuples(st.just("unproduce"), WHO, NAMES, st.just("")),
    st.tuples(st.just("unconsume"), WHO, NAMES, st.just("")),
    st.tuples(st.just("leave"), WHO, st.just(""), st.just("")),
    st.tuples(st.just("suspect"), WHO, st.just(""), st.sampled_from(["", "yes"])),
)


def do(registry: Registry, step: str, who: Who, name: str, value: str, now: int) -> Effect:
    match step:
        case "produce":
            return registry.register_producer(who, producer(name, value), now)
        case "consume":
            return registry.register_consumer(who, consumer(name, f"of {who.name}", value), now)
        case "create":
            return registry.create(who, create(name, value), now)
        case "destroy":
            return registry.destroy(who, name)
        case "unproduce":
            return registry.unregister(who.session, "producer", name)
        case "unconsume":
            return registry.unregister(who.session, "consumer", name, f"of {who.name}")
        case "leave":
            return registry.left(who.session)
        case _:
            return registry.suspect(who.session, bool(value))


@given(st.lists(STEPS, max_size=40))
def test_everything_holds_after_every_step(steps: list[tuple[str, Who, str, str]]) -> None:
    registry = Registry()
    before: dict[str, ChannelInfo] = {}
    for now, (step, who, name, value) in enumerate(steps):
        try:
            effect = do(registry, step, who, name, value, now)
        except ProtocolError:
            assert snapshot(registry) == before, "a refusal changed something"
            continue
        after = snapshot(registry)
        assert effect.changed or after == before
        check(registry, after)
        on_it = {each.identity for channel in (*before.values(), *after.values()) for each in peers(channel)}
        others = {ALICE, BOB, CAROL, ROOT}
        for session, said in effect.notices:
            assert next(each for each in others if each.session == session).identity in on_it
            assert session != who.session or said.event == "schema_mismatch"
        contracts = {each.pattern for each in before.values()} ^ {each.pattern for each in after.values()}
        assert contracts <= set(effect.patterns)
        before = after
    for who in (ALICE, BOB, CAROL, ROOT):
        registry.left(who.session)
    assert not any(peers(channel) for channel in snapshot(registry).values())


def snapshot(registry: Registry) -> dict[str, ChannelInfo]:
    return {channel.name: channel.info(whole=True) for channel in registry.select(">")}


def peers(channel: ChannelInfo) -> list[control.PeerInfo]:
    return [*channel.producers, *channel.consumers]


def check(registry: Registry, channels: dict[str, ChannelInfo]) -> None:
    patterns = [channel.pattern for channel in channels.values()]
    assert len(patterns) == len(set(patterns))
    for name, told in channels.items():
        channel = registry.known(name)
        assert channel.explicit or peers(told), f"nothing is left of {name}"
        assert told.owner or not told.producers
        hashes = {each.schema_hash for each in channel.producers.values()} - {""}
        assert len(hashes) <= 1
        if told.producers:
            assert {each.schema_hash for each in channel.consumers.values()} - {"", told.schema_hash} == set()
    for topic in ("a", "b", "a.b", "a.c"):
        found = registry.find(topic)
        fitting = [channel.channel for channel in channels.values() if matches(channel.pattern, topic)]
        assert (found is None) == (not fitting)
        assert found is None or found.name in fitting
