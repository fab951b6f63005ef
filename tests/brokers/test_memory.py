"""What the broker in memory promises beyond the contract: numbers, batches that wait, groups, names, endpoints."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from trunkline import (
    Backpressure,
    BackpressureTimeout,
    Delivery,
    Fate,
    InboxFull,
    InvalidTopic,
    MemoryBroker,
    Message,
    Overflow,
    PartlyRefused,
    Retry,
    Settings,
    endpoint,
)
from trunkline.delivery.subscribers import DEPARTED
from trunkline.testing import Simulation, world
from trunkline.testing.trial import Trial, text, tried
from trunkline.topic import BROADCAST

GROUP = Delivery(group="g")


# Publishing


async def test_messages_are_numbered_in_the_order_of_publishing(trial: Trial) -> None:
    stream = await trial.open(">")
    await trial.publish("a", "1")
    await trial.publish("b", "2", "3")
    await trial.publish("a", "4", priority=90)
    assert [(text(m), m.seq) for m in [await trial.take(stream) for _ in range(4)]] == [
        ("4", 4),
        ("1", 1),
        ("2", 2),
        ("3", 3),
    ]
    assert trial.broker.sequence.last == 4


async def test_a_number_that_was_given_is_kept(trial: Trial) -> None:
    stream = await trial.open("t")
    number = trial.broker.sequence.next()
    await trial.send([Message(topic="t", payload=b"1", seq=number)])
    assert (await trial.take(stream)).seq == number


async def test_an_empty_batch_is_nothing(trial: Trial) -> None:
    await trial.send([])
    assert trial.broker.published_by_topic() == {}


async def test_topics_are_checked_and_counted(trial: Trial) -> None:
    await trial.publish("a", "1", "2")
    await trial.publish("b", "3", priority=90)
    assert trial.broker.published_by_topic() == {"a": 2, "b": 1}
    with pytest.raises(InvalidTopic):
        await trial.broker.publish([Message(topic="a.*", payload=b"", seq=9)])
    with pytest.raises(InvalidTopic):
        trial.broker.subscribe("a..b")


async def test_topics_are_remembered_up_to_a_limit(simulation: Simulation) -> None:
    async with tried(MemoryBroker(world(simulation), Settings(max_topics=3))) as trial:
        stream = await trial.open(">")
        for number in range(10):
            await trial.publish(f"t.{number}", str(number))
        assert len(trial.broker.published_by_topic()) == 3
        await trial.publish("t.0", "again")
        await trial.takes(stream, *map(str, range(10)), "again")


async def test_who_would_get_it(trial: Trial) -> None:
    assert not trial.broker.has_subscribers("t.a")
    streams = [await trial.open("t.*", Delivery(name="x")), await trial.open("t.a", Delivery(name="y", group="g"))]
    assert sorted(trial.broker.subscribers("t.a")) == ["x", "y"]
    assert trial.broker.subscribers("t.b") == ["x"]
    assert trial.broker.has_subscribers("t.a")
    for stream in streams:
        await stream.aclose()
    assert not trial.broker.has_subscribers("t.a")


async def test_a_batch_larger_than_the_inbox_arrives_in_order(trial: Trial) -> None:
    stream = await trial.open("t", Delivery(capacity=3))
    beside = await trial.open("t")
    wanted = [str(number) for number in range(20)]
    sending = trial.start(trial.publish("t", *wanted))
    await trial.takes(stream, *wanted)
    await sending
    await trial.takes(beside, *wanted)


async def test_who_subscribes_while_a_batch_waits_sees_the_rest_of_it(trial: Trial) -> None:
    slow = await trial.open("t", Delivery(capacity=2))
    sending = trial.start(trial.publish("t", *"0123456789"))
    await asyncio.sleep(1)
    late = await trial.open("t")
    await trial.takes(slow, *"0123456789")
    await sending
    await trial.end("t")
    rest = [text(message) for message in await trial.rest(late)]
    assert rest == list("0123456789")[-len(rest) :]
    assert 6 <= len(rest) <= 8


async def test_a_refused_batch_says_which_and_the_others_have_it_all_the_same(trial: Trial) -> None:
    strict = await trial.open("t", Delivery(capacity=2, overflow=Overflow.REJECT))
    healthy = await trial.open("t")
    with pytest.raises(PartlyRefused) as refusal:
        await trial.publish("t", "1", "2", "3", "4")
    assert [(text(message), type(error)) for message, error in refusal.value.refused] == [
        ("3", InboxFull),
        ("4", InboxFull),
    ]
    await trial.takes(strict, "1", "2")
    await trial.takes(healthy, "1", "2", "3", "4")


async def test_a_stuck_subscriber_ends_a_batch_after_one_timeout(simulation: Simulation) -> None:
    async with tried(MemoryBroker(world(simulation), Settings(backpressure=Backpressure(timeout_s=5)))) as trial:
        stuck = await trial.open("t", Delivery(capacity=1))
        with pytest.raises(PartlyRefused) as refusal:
            await trial.publish("t", "1", "2", "3", "4")
        assert simulation.now() == pytest.approx(5)
        assert [text(message) for message, _ in refusal.value.refused] == ["2", "3", "4"]
        assert all(isinstance(error, BackpressureTimeout) for _, error in refusal.value.refused)
        await trial.takes(stuck, "1")


async def test_several_stuck_subscribers_cost_one_timeout(simulation: Simulation) -> None:
    """A publisher waits for all of them at once: `timeout_s` limits a publish, not each subscriber."""
    async with tried(MemoryBroker(world(simulation), Settings(backpressure=Backpressure(timeout_s=3)))) as trial:
        stuck = [await trial.open("t", Delivery(capacity=1)) for _ in range(3)]
        await trial.publish("t", "1")
        with pytest.raises(BackpressureTimeout):
            await trial.publish("t", "2")
        assert simulation.now() == pytest.approx(3)
        assert [stream.account().dropped for stream in stuck] == [1, 1, 1]


@pytest.mark.parametrize("end", ["timeout", "cancelled"])
async def test_what_was_never_offered_is_not_said_to_be_delivered(simulation: Simulation, end: str) -> None:
    """A batch ended early: the healthy subscriber did not get the rest, although its range spans their numbers."""
    async with tried(MemoryBroker(world(simulation), Settings(backpressure=Backpressure(timeout_s=5)))) as trial:
        stuck, healthy = await trial.open("t", Delivery(capacity=1)), await trial.open("t")
        sequence = trial.broker.sequence
        batch = [Message(topic="t", payload=each.encode(), seq=sequence.next()) for each in "1234"]
        publishing = trial.start(trial.broker.publish(batch))
        await asyncio.wait([publishing], timeout=1 if end == "cancelled" else 10)
        publishing.cancel()
        await asyncio.wait([publishing])
        assert isinstance(publishing.exception(), PartlyRefused) if end == "timeout" else publishing.cancelled()
        await stuck.aclose()
        await trial.publish("t", "5")
        got = [text(message) for message in [healthy.try_recv() for _ in range(healthy.depth)]]
        for message in batch:
            fates = {outcome.subscriber: outcome.fate for outcome in trial.broker.served.outcomes(message)}
            said = fates.get(healthy.name) is Fate.DELIVERED
            assert said == (text(message) in got), f"{healthy.name} got {got}, and of {text(message)} is said {fates}"


async def test_a_stuck_subscriber_keeps_nothing_from_a_healthy_one(trial: Trial) -> None:
    await trial.open("t", Delivery(capacity=1))
    healthy = await trial.open("t")
    await trial.publish("t", "1")
    waiting = trial.start(trial.publish("t", "2"))
    await asyncio.sleep(1)
    await trial.takes(healthy, "1", "2")
    assert not waiting.done()


async def test_closing_lets_waiting_publishers_go(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t", Delivery(capacity=1))
    waiting = [trial.start(trial.publish("t", str(number))) for number in range(3)]
    await asyncio.sleep(1)
    await trial.broker.aclose()
    await asyncio.gather(*waiting)
    assert simulation.now() == 1
    assert stream.account().dropped == 3


# Groups


async def test_idle_members_share_evenly(trial: Trial) -> None:
    members = [await trial.open("t", GROUP) for _ in range(4)]
    got: Counter[str] = Counter()
    for number in range(40):
        await trial.publish("t", str(number))
        for member in members:
            if member.depth:
                got[member.name] += 1
                await trial.takes(member, str(number))
    assert set(got.values()) == {10}


async def test_the_member_with_the_least_to_do_gets_the_next(trial: Trial) -> None:
    busy = await trial.open("t", Delivery(group="g", ack=True))
    await trial.publish("t", "1", "2", "3")
    held = [await trial.take(busy) for _ in range(3)]
    idle = await trial.open("t", GROUP)
    await trial.publish("t", "4", "5", "6")
    await trial.arrived(3, idle)
    await trial.takes(idle, "4", "5", "6")
    for message in held:
        assert busy.ack(message)


async def test_what_a_leaver_had_reaches_the_successor_in_order(trial: Trial) -> None:
    leaver = await trial.open("t", GROUP)
    await trial.publish("t", "1", "2", "3", "4", "5")
    successor = await trial.open("t", GROUP)
    await leaver.aclose()
    await trial.publish("t", "6")
    await trial.takes(successor, "1", "2", "3", "4", "5", "6")


async def test_what_a_leaver_held_goes_on_with_its_attempts(trial: Trial) -> None:
    delivery = Delivery(group="g", ack=True, retry=Retry(attempts=5, delay_s=100, jitter=0))
    leaver = await trial.open("t", delivery)
    await trial.publish("t", "failed", "held")
    failed, held = await trial.take(leaver), await trial.take(leaver)
    leaver.nack(failed)
    successor = await trial.open("t", delivery)
    await leaver.aclose()
    assert not leaver.ack(held)
    got = {text(message): message for message in [await trial.take(successor) for _ in range(2)]}
    assert (got["failed"].attempts, got["held"].attempts) == (1, 0)
    assert all(successor.ack(message) for message in got.values())
    for message in (failed, held):
        (outcome,) = trial.broker.served.outcomes(message)
        assert (outcome.subscriber, outcome.fate) == (successor.name, Fate.DELIVERED)


async def test_a_dead_letter_knows_the_attempts_of_members_that_left(trial: Trial) -> None:
    delivery = Delivery(group="g", ack=True, retry=Retry(attempts=2, delay_s=0.1, jitter=0))
    leaver = await trial.open("t", delivery)
    await trial.publish("t", "1")
    leaver.nack(await trial.take(leaver), "first")
    successor = await trial.open("t", delivery)
    await leaver.aclose()
    successor.nack(await trial.take(successor), "second")
    (letter,) = trial.broker.served.dead_letters
    assert letter.message.attempts == 2
    assert [(each.number, each.error) for each in letter.attempts] == [(1, "Nacked: first"), (2, "Nacked: second")]


async def test_what_waits_for_room_at_a_leaver_goes_to_the_successor(trial: Trial) -> None:
    delivery = Delivery(group="g", capacity=1)
    leaver = await trial.open("t", delivery)
    await trial.publish("t", "1")
    waiting = trial.start(trial.publish("t", "2"))
    await asyncio.sleep(1)
    assert not waiting.done()
    successor = await trial.open("t", delivery)
    await leaver.aclose()
    await trial.takes(successor, "1", "2")
    await waiting
    assert trial.broker.served.accounts()[successor.name].dropped == 0


async def test_what_waits_for_room_at_a_member_that_stops_goes_to_the_others(trial: Trial) -> None:
    """It was not yet in the inbox, so it does not belong to the messages that the stopped member still handles."""
    stopping = await trial.open("t", Delivery(group="g", capacity=1))
    await trial.publish("t", "1")
    waiting = trial.start(trial.publish("t", "2"))
    await asyncio.sleep(1)
    assert not waiting.done()
    going = await trial.open("t", Delivery(group="g", capacity=1))
    stopping.stop()
    await trial.takes(stopping, "1")
    await trial.takes(going, "2")
    await waiting


async def test_a_stopped_member_that_leaves_passes_on_to_one_that_goes_on(trial: Trial) -> None:
    leaver, stopped, going = [await trial.open("t", GROUP) for _ in range(3)]
    await trial.publish("t", *map(str, range(9)))
    stopped.stop()
    before = going.depth
    had = leaver.depth
    await leaver.aclose()
    assert going.depth == before + had
    await stopped.aclose()
    assert going.depth == 9


async def test_when_the_last_member_leaves_it_is_dropped(trial: Trial) -> None:
    members = [await trial.open("t", GROUP) for _ in range(2)]
    await trial.publish("t", "1", "2", "3")
    for member in members:
        await member.aclose()
    account = trial.broker.served.accounts()[DEPARTED]
    assert (account.accepted, account.dropped, account.in_flight) == (3, 3, 0)


async def test_members_of_one_group_may_want_different_topics(trial: Trial) -> None:
    broad, narrow = await trial.open("t.*", GROUP), await trial.open("t.a", GROUP)
    await trial.publish("t.b", "1", "2")
    await trial.takes(broad, "1", "2")
    await trial.publish("t.a", "3", "4")
    await trial.arrived(2, broad, narrow)
    await trial.publish("t.b", "5")
    await narrow.aclose()
    await trial.arrived(3, broad)


# Names


async def test_a_name_that_was_chosen_is_never_given_to_somebody_else(trial: Trial) -> None:
    probe = await trial.open("t")
    prefix, number = probe.name.rsplit("#", 1)
    chosen = await trial.open("t", Delivery(name=f"{prefix}#{int(number) + 1}"))
    given = await trial.open("t")
    assert given.name != chosen.name
    await trial.publish("t", "1")
    for stream in (probe, chosen, given):
        await trial.takes(stream, "1")
    await chosen.aclose()
    assert trial.broker.subscribers("t") == [probe.name, given.name]
    await trial.publish("t", "2")
    await trial.takes(given, "2")
    await trial.is_over(chosen)


# Endpoints and links


async def test_an_endpoint_gets_what_is_for_everyone(trial: Trial) -> None:
    a, b, other = await trial.open(endpoint("a")), await trial.open(endpoint("b")), await trial.open("t")
    await trial.publish(BROADCAST, "all")
    await trial.publish(endpoint("a"), "a")
    await trial.takes(a, "all", "a")
    await trial.takes(b, "all")
    trial.is_empty(b)
    trial.is_empty(other)
    await a.aclose()
    await trial.publish(BROADCAST, "again")
    await trial.takes(b, "again")


async def test_a_link_does_not_lead_on_to_another(trial: Trial) -> None:
    a, b = await trial.open(endpoint("a")), await trial.open(endpoint("b"))
    trial.broker.link("t", endpoint("a"))
    trial.broker.link(endpoint("a"), endpoint("b"))
    trial.broker.link(endpoint("b"), endpoint("a"))
    await trial.publish("t", "1")
    await trial.takes(a, "1")
    trial.is_empty(a)
    trial.is_empty(b)


async def test_who_is_reached_in_two_ways_gets_it_once(trial: Trial) -> None:
    stream = await trial.open(endpoint("a"))
    trial.broker.link("t.*", endpoint("a"))
    trial.broker.link("t.x", endpoint("a"))
    await trial.publish("t.x", "1")
    await trial.takes(stream, "1")
    trial.is_empty(stream)


async def test_a_tap_may_name_more_who_are_to_get_it(trial: Trial) -> None:
    stream = await trial.open("elsewhere", Delivery(capacity=1))
    inbox = next(iter(trial.broker.served))
    stop = trial.broker.tap("t", lambda message: [inbox] if text(message) == "yes" else None)
    await trial.publish("t", "no")
    await trial.publish("t", "yes")
    waiting = trial.start(trial.publish("t", "yes"))
    await asyncio.sleep(1)
    assert not waiting.done(), "room is waited for there, too"
    await trial.takes(stream, "yes", "yes")
    await waiting
    stop()
    await trial.publish("t", "yes")
    trial.is_empty(stream)


# What it can tell


async def test_the_books_of_those_who_left_are_kept_together(trial: Trial) -> None:
    for number in range(3):
        async with trial.broker.subscribe("t") as stream:
            await trial.publish("t", "taken", "left")
            await trial.takes(stream, "taken")
        account = trial.broker.served.accounts()[DEPARTED]
        assert (account.accepted, account.delivered, account.dropped) == (2 * number + 2, number + 1, number + 1)
    assert trial.broker.served.pending() == 0


async def test_where_a_message_went(trial: Trial) -> None:
    ways = [
        Delivery(name="took it"),
        Delivery(name="has it"),
        Delivery(name="holds it", ack=True),
        Delivery(name="filters", where="sender == 'nobody'"),
        Delivery(name="left"),
    ]
    by_name = {stream.name: stream for stream in [await trial.open("t", way) for way in ways]}
    await trial.publish("t", "1")
    message = await trial.take(by_name["took it"])
    await trial.take(by_name["holds it"])
    await by_name["left"].aclose()
    fates = {outcome.subscriber: outcome.fate for outcome in trial.broker.served.outcomes(message)}
    assert fates == {
        "took it": Fate.DELIVERED,
        "has it": Fate.IN_FLIGHT,
        "holds it": Fate.IN_FLIGHT,
        "filters": Fate.FILTERED,
        "left": Fate.DROPPED,
    }


async def test_what_a_silent_member_lets_lapse_goes_to_another(trial: Trial) -> None:
    delivery = Delivery(group="g", ack=True, lease_s=1, retry=Retry(attempts=3, delay_s=0.1, jitter=0))
    silent = await trial.open("t", delivery)
    await trial.publish("t", "1")
    await trial.take(silent)
    lively = await trial.open("t", delivery)
    again = await trial.take(lively)
    assert (text(again), again.attempts) == ("1", 1)
    assert lively.ack(again)
    trial.balanced()
    assert (silent.account().accepted, lively.account().delivered) == (0, 1)


async def test_who_subscribes_is_logged_with_the_number_of_subscribers(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", logger="trunkline.delivery"):
        for number in (1, 2):
            stream = await trial.open("orders.*")
            assert f"{stream.name} subscribes to orders.* (subscribers now: {number})" in caplog.messages


async def test_closing_again_does_not_touch_a_successor_of_the_same_name(trial: Trial) -> None:
    first = await trial.open("t", Delivery(name="worker"))
    await first.aclose()
    second = await trial.open("t", Delivery(name="worker"))
    await first.aclose()
    await trial.publish("t", "1")
    await trial.takes(second, "1")
    assert trial.broker.subscribers("t") == ["worker"]


async def test_a_link_that_was_refused_is_not_there(trial: Trial) -> None:
    for _ in range(2):
        with pytest.raises(InvalidTopic):
            trial.broker.link("a..b", "_to.me")


async def test_a_group_is_forgotten_with_its_last_member(trial: Trial) -> None:
    broker = trial.broker
    assert isinstance(broker, MemoryBroker)
    for number in range(3):
        async with broker.subscribe("t", Delivery(group=f"g{number}")), broker.subscribe("u", GROUP):
            assert len(broker.tree._groups) == 2
    assert not broker.tree._groups
