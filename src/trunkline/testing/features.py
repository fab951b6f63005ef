"""Promises about optional features: a broker keeps them, or refuses with Unsupported. See also `contract.py`."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Final

from trunkline.brokers.broker import Feature
from trunkline.delivery.dead_letters import Cause
from trunkline.delivery.options import Delivery
from trunkline.delivery.retry import Retry
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import Closed, DuplicateName, InboxFull, InvalidTopic, StreamEmpty
from trunkline.message import Message
from trunkline.testing.trial import SOON_S, Trial, expect, promise, promises_in, raises, text, until, within
from trunkline.topic import endpoint
from trunkline.wire.control import Qos

AGAIN: Final = Retry(attempts=3, delay_s=0.02, jitter=0)


@promise
async def a_group_shares(trial: Trial) -> None:
    """Each message goes to exactly one member of a group, and to everyone outside it."""
    if not await trial.offers(Feature.GROUPS):
        return
    members = [await trial.open("t.*", Delivery(group="g")) for _ in range(3)]
    others = [await trial.open("t.a", Delivery(group="other")), await trial.open("t.a")]
    wanted = [str(number) for number in range(30)]
    await trial.publish("t.a", *wanted[:15])
    for number in wanted[15:]:
        await trial.publish("t.a", number)
    for other in others:
        await trial.takes(other, *wanted)
    await trial.arrived(30, *members)
    got = Counter(text(message) for member in members for message in emptied(member))
    expect(got == Counter(wanted), f"the group got {sorted(got.elements(), key=int)}")
    trial.balanced()


@promise
async def a_leaving_member_passes_on(trial: Trial) -> None:
    """Messages that a leaving member has not taken go to the remaining members, each to one."""
    if not await trial.offers(Feature.GROUPS):
        return
    members = [await trial.open("t", Delivery(group="g")) for _ in range(3)]
    wanted = [str(number) for number in range(12)]
    await trial.publish("t", *wanted)
    await trial.arrived(12, *members)
    got = [text(member.try_recv()) for member in members if member.depth]
    for leaver in members[:2]:
        await leaver.aclose()
        await trial.is_over(leaver)
        trial.balanced()
    await trial.arrived(12 - len(got), members[2])
    got += [text(message) for message in emptied(members[2])]
    expect(sorted(got, key=int) == wanted, f"after two of three members left, {sorted(got, key=int)} were delivered")
    await trial.publish("t", "to the last")
    await trial.takes(members[2], "to the last")


@promise
async def a_stopped_member_gets_no_more(trial: Trial) -> None:
    """A stopped member gets no more messages of the group: they go to the others, and none is lost."""
    if not await trial.offers(Feature.GROUPS):
        return
    stopped, going = [await trial.open("t", Delivery(group="g")) for _ in range(2)]
    stopped.stop()
    wanted = [str(number) for number in range(6)]
    await trial.publish("t", *wanted[:3])
    for number in wanted[3:]:
        await trial.publish("t", number)
    await trial.arrived(6, going)
    await trial.takes(going, *wanted)
    await trial.is_over(stopped)


def emptied(stream: Stream) -> list[Message]:
    found: list[Message] = []
    with suppress(StreamEmpty):
        while True:
            found.append(stream.try_recv())
    return found


@promise
async def priority_orders_delivery(trial: Trial) -> None:
    """Of waiting messages, the highest priority is delivered first, and within a priority the oldest."""
    if not await trial.offers(Feature.PRIORITY):
        return
    stream = await trial.open("t")
    for priority in (50, 25, 100, 50, 0, 75, 100, 51, 49, 25):
        await trial.publish("t", f"{priority} a", f"{priority} b", priority=priority)
    await trial.arrived(20, stream)
    got = [text(await trial.take(stream)) for _ in range(20)]
    levels = [100, 100, 75, 51, 50, 50, 49, 25, 25, 0]
    expect(got == [f"{level} {which}" for level in levels for which in "ab"], f"they came as {got}")


@promise
async def unacknowledged_comes_again(trial: Trial) -> None:
    """An unacknowledged message is delivered again after its lease, as the next attempt; others are not."""
    if not await trial.offers(Feature.ACKNOWLEDGEMENT):
        return
    stream = await trial.open("t", Delivery(ack=True, lease_s=SOON_S, retry=AGAIN))
    await trial.publish("t", "1", "2")
    first, second = await trial.take(stream), await trial.take(stream)
    expect(stream.ack(second), "ack of a held message reported that its lease had ended")
    expect(not stream.ack(second), "a second ack of the same message was counted")
    again = await trial.take(stream)
    expect((again.id, again.attempts) == (first.id, 1), f"{first} was not acknowledged, then came {again}")
    expect(stream.ack(again), "ack of a held message reported that its lease had ended")
    await asyncio.sleep(3 * SOON_S)
    trial.is_empty(stream)
    account = stream.account()
    expect((account.delivered, account.in_flight) == (2, 0), f"two messages were acknowledged, then: {account}")


@promise
async def what_cannot_be_handled_is_a_dead_letter(trial: Trial) -> None:
    """A nack redelivers a message until its attempts are used up; then, or if it is rejected, it is a dead letter."""
    if not await trial.offers(Feature.ACKNOWLEDGEMENT):
        return
    stream = await trial.open("t", Delivery(ack=True, retry=AGAIN))
    await trial.publish("t", "1")
    for attempts in range(3):
        message = await trial.take(stream)
        expect(message.attempts == attempts, f"attempt number {attempts} came as {message}")
        again = stream.nack(message, "no use") is not None
        expect(again == (attempts < 2), f"after {attempts + 1} of 3 attempts it is tried again: {again}")
        trial.balanced()
    await trial.publish("t", "2")
    stream.reject(await trial.take(stream), "never")
    await until(lambda: stream.account().dead == 2, lambda: f"two messages are dead, but: {stream.account()}")
    causes = [(text(letter.message), letter.cause) for letter in trial.broker.served.dead_letters]
    expect(causes == [("1", Cause.HANDLER_FAILED), ("2", Cause.REJECTED)], f"the dead letters are {causes}")


@promise
async def a_message_may_require_an_ack(trial: Trial) -> None:
    """A message with requires_ack counts as delivered after its ack, even on a stream without `ack`."""
    if not await trial.offers(Feature.ACKNOWLEDGEMENT):
        return
    stream = await trial.open("t", Delivery(lease_s=SOON_S, retry=AGAIN))
    await trial.publish("t", "1", requires_ack=True)
    first = await trial.take(stream)
    expect(stream.account().delivered == 0, "it counts as delivered before its ack")
    again = await trial.take(stream)
    expect((again.id, again.attempts) == (first.id, 1), f"{first} was not acknowledged, then came {again}")
    expect(stream.ack(again) and stream.account().delivered == 1, "its ack did not count")


@promise
async def block_makes_publishers_wait(trial: Trial) -> None:
    """A full inbox with `block` makes publish wait, and wakes it when there is room; nothing is lost or reordered."""
    if not await trial.offers(Feature.BACKPRESSURE):
        return
    stream = await trial.open("t", Delivery(capacity=2, overflow=Overflow.BLOCK))

    async def send() -> None:
        for number in range(0, 12, 3):
            await trial.publish("t", *map(str, range(number, number + 3)))

    sending = trial.start(send())
    await asyncio.wait([sending], timeout=SOON_S)
    expect(not sending.done(), "12 messages were published into an inbox for 2 while nobody took any")
    trial.balanced()
    await trial.takes(stream, *map(str, range(12)))
    async with within("publish was not woken by the room in the inbox"):
        await sending
    expect(stream.account().dropped == 0, f"something was dropped: {stream.account()}")


@promise
async def overflow_policies_do_as_named(trial: Trial) -> None:
    """A full inbox drops its oldest message, drops the newest, or raises InboxFull; each drop is counted."""
    if not await trial.offers(Feature.BACKPRESSURE):
        return
    await _fill(trial, Overflow.DROP_OLDEST, kept="34")
    await _fill(trial, Overflow.DROP_NEWEST, kept="12")
    await _fill(trial, Overflow.REJECT, kept="12")


async def _fill(trial: Trial, overflow: Overflow, kept: str) -> None:
    """Publish four messages for an inbox of two."""
    topic = f"t.{overflow.value}"
    stream = await trial.open(topic, Delivery(capacity=2, overflow=overflow))
    beside = await trial.open(topic)
    for number in "1234":
        if overflow is Overflow.REJECT and number in "34":
            with raises(InboxFull, "publish into a full inbox that rejects"):
                await trial.publish(topic, number)
        else:
            await trial.publish(topic, number)
    await until(lambda: stream.account().dropped == 2, lambda: f"{overflow}, 2 of 4 must go, but: {stream.account()}")
    await trial.takes(stream, *kept)
    await trial.takes(beside, *"1234")
    trial.is_empty(stream)


@promise
async def cancelled_publish_leaves_a_fate(trial: Trial) -> None:
    """A publish that is cancelled while it waits for room is dropped at the full inbox, and arrives everywhere else."""
    if not await trial.offers(Feature.BACKPRESSURE):
        return
    stream = await trial.open("t", Delivery(capacity=1, overflow=Overflow.BLOCK))
    beside = await trial.open("t")
    await trial.publish("t", "1")
    waiting = trial.start(trial.publish("t", "2"))
    await trial.arrived(2, beside)
    await asyncio.wait([waiting], timeout=SOON_S)
    expect(not waiting.done(), "a publish into a full inbox did not wait")
    waiting.cancel()
    await asyncio.wait([waiting])
    expect(waiting.cancelled(), "a cancelled publish swallowed its cancellation")
    await until(
        lambda: (stream.account().dropped, stream.account().in_flight) == (1, 1),
        lambda: f"one waits, one was cancelled: {stream.account()}",
    )
    await trial.takes(stream, "1")
    await trial.publish("t", "3")
    await trial.takes(stream, "3")
    await trial.takes(beside, "1", "2", "3")


@promise
async def links_lead_to_an_endpoint(trial: Trial) -> None:
    """A link also sends matching messages to an endpoint, once, until it is removed."""
    if not await trial.offers(Feature.LINKS):
        return
    inbox = endpoint("e")
    async with trial.broker.subscribe(inbox) as stream:
        expect(trial.broker.link("t.*", inbox), "the first link reported that it already existed")
        expect(not trial.broker.link("t.*", inbox), "the second link reported that it is new")
        trial.broker.link("t.>", inbox)
        await trial.publish("t.a", "linked")
        expect(trial.broker.unlink("t.*", inbox) and trial.broker.unlink("t.>", inbox), "a link could not be undone")
        expect(not trial.broker.unlink("t.*", inbox), "a link was undone twice")
        await trial.publish("t.a", "not linked")
        await trial.publish(inbox, "direct")
        await trial.end(inbox)
        await trial.has_only(stream, "linked", "direct")


@promise
async def a_durable_subscription_remembers(trial: Trial) -> None:
    """A durable subscription gets unacknowledged messages, and those published meanwhile, when it returns."""
    if not await trial.offers(Feature.DURABLE):
        return
    durable = Delivery(name="d", durable=True)
    stream = await trial.open("t.*", durable)
    await trial.publish("t.a", "1", "2", "3")
    await trial.publish("u", "of another topic")
    for wanted in ("1", "2"):
        message = await trial.take(stream)
        expect(text(message) == wanted and stream.ack(message), f"{wanted} came as {message}, or its lease had ended")
    await trial.take(stream)
    await stream.aclose()
    await trial.publish("t.b", "4", "5")
    again = await trial.open("t.*", durable)
    got: list[str] = []
    async with within(f"after {got} nothing came"), aclosing(again.batches()) as batches:
        while len(got) < 3:
            batch = await anext(batches)
            got += map(text, batch)
            expect(
                again.ack_many(batch) == len(batch), "ack_many of held messages reported that their leases had ended"
            )
    expect(again.account().in_flight == 0, f"all is acknowledged, but: {again.account()}")
    expect(got == ["3", "4", "5"], f"after 1 and 2 were acknowledged it got {got}")
    trial.is_empty(again)


@promise
async def a_durable_group_shares(trial: Trial) -> None:
    """Members of a durable group share the messages, each once; a late member gets a share of the waiting ones."""
    if not await trial.offers(Feature.DURABLE):
        return
    durable = Delivery(group="g", durable=True, capacity=2)
    first = await trial.open("t", durable)
    wanted = [str(number) for number in range(12)]
    await trial.publish("t", *wanted)
    second = await trial.open("t", durable)
    got: list[list[str]] = [[], []]
    while sum(map(len, got)) < len(wanted):
        await until(lambda: first.depth + second.depth > 0, lambda: f"after {got} nothing came")
        for stream, mine in zip((first, second), got, strict=True):
            if stream.depth:
                message = await trial.take(stream)
                mine.append(text(message))
                stream.ack(message)
    expect(sorted(got[0] + got[1], key=int) == wanted, f"the members got {got}")
    expect(all(got), f"one member got nothing: {got}")


@promise
async def a_durable_subscription_starts_where_it_is_told(trial: Trial) -> None:
    """A new one starts at the end, the beginning, a number, or a time; an existing one at its position."""
    if not await trial.offers(Feature.DURABLE):
        return
    witness = await trial.open("t", Delivery(name="witness", durable=True))
    await trial.publish("t", "1", "2")
    await asyncio.sleep(SOON_S)
    moment = datetime.fromtimestamp(trial.broker.world.time_ns() / 1e9, UTC).isoformat()
    await asyncio.sleep(SOON_S)
    await trial.publish("t", "3")
    # Numbers ascend; a broker may leave gaps.
    _, second, third = [(await trial.take(witness)).seq for _ in range(3)]
    for start, wanted in (("beginning", "123"), (third, "3"), (second, "23"), (moment, "3"), ("end", "")):
        delivery = Delivery(name=f"from {start}", durable=True, start=start)
        stream = await trial.open("t", delivery)
        await trial.takes(stream, *wanted)
        trial.is_empty(stream)


@promise
async def the_last_message_is_known(trial: Trial) -> None:
    """`last` returns the last message of a topic, or the last one before a number."""
    if not await trial.offers(Feature.STORED):
        return
    last = trial.broker.require_store().last
    expect(await last("t.a") is None, "there is a last message on a topic where nothing was published")
    for number in range(6):
        topic = "t.a" if number % 2 else "t.b"
        sent = (await trial.publish(topic, "not the last", str(number)))[-1]
        found = await last(topic)
        expect(found is not None and found.id == sent.id, f"the last on {topic} is {found}, published was {sent}")
    found = await last("t.a")
    expect(found is not None and text(found) == "5", f"the last on t.a is {found}")
    assert found is not None
    for wanted in ("not the last", "3", "not the last", "1"):
        found = await last("t.a", found.seq)
        expect(found is not None and text(found) == wanted, f"the one before is {found}, not {wanted!r}")
        assert found is not None
    expect(await last("t.a", found.seq - 1) is None, "there is something before the first message")
    with raises(InvalidTopic, "asking for the last message of a pattern"):
        await last("t.*")
    await trial.broker.aclose()
    with raises(Closed, "asking a closed broker for a last message"):
        await last("t.a")


@promise
async def a_subscription_may_start_with_the_last(trial: Trial) -> None:
    """It gets the last message of each matching topic, then all later ones, once; durable or not."""
    if not await trial.offers(Feature.STORED):
        return
    for number in "123":
        await trial.publish("t.a", f"a{number}")
        await trial.publish("t.b", f"b{number}")
        await trial.publish("u", f"u{number}")
    one = await trial.open("t.a", Delivery(start="last"))
    each = await trial.open("t.*", Delivery(start="last"))
    durable = await trial.open("t.*", Delivery(start="last", name="d", durable=True))
    none = await trial.open("t.c", Delivery(start="last"))
    beginning = await trial.open("t.a", Delivery(start="beginning"))
    await trial.publish("t.a", "a4", "a5")
    await trial.publish("t.c", "c1")
    await trial.takes(one, "a3", "a4", "a5")
    await trial.takes(each, "a3", "b3", "a4", "a5", "c1")
    await trial.takes(none, "c1")
    await trial.takes(beginning, "a1", "a2", "a3", "a4", "a5")
    for wanted in ("a3", "b3", "a4"):
        message = await trial.take(durable)
        expect(text(message) == wanted and durable.ack(message), f"{wanted} came as {message}")
    await durable.aclose()
    again = await trial.open("t.*", Delivery(start="last", name="d", durable=True))
    await trial.takes(again, "a5", "c1")
    with raises(DuplicateName, "a plain subscription with the name of a durable one"):
        await trial.open("t.*", Delivery(start="last", name="d"))


@promise
async def nothing_is_missed_between_the_last_and_what_follows(trial: Trial) -> None:
    """With start="last", messages that are published while the subscription opens arrive exactly once."""
    if not await trial.offers(Feature.STORED):
        return

    async def publish() -> None:
        for number in range(40):
            await trial.publish("t", str(number))
            await asyncio.sleep(0)

    publishing = trial.start(publish())
    streams = []
    for _ in range(8):
        streams.append(await trial.open("t", Delivery(start="last")))
        await asyncio.sleep(SOON_S / 40)
    await publishing
    await trial.end("t")
    for stream in streams:
        got = [int(text(message)) for message in await trial.rest(stream)]
        expect(got == list(range(got[0] if got else 40, 40)), f"{stream.name} got {got}")


@promise
async def channels_have_terms(trial: Trial) -> None:
    """A created channel is listed, gives its terms to consumers, and disappears when it is destroyed."""
    if not await trial.offers(Feature.CHANNELS):
        return
    directory = trial.broker.require_directory()
    qos = Qos(overflow=Overflow.DROP_OLDEST, group="g")
    expect(await directory.create_channel("c", pattern="t.>", qos=qos), "a channel could not be created")
    found = await directory.channels()
    expect(found is not None and [each.channel for each in found] == ["c"], f"the channels are {found}")
    terms = await directory.attach("c", "me")
    options = {"overflow": Overflow.DROP_OLDEST, "group": "g"}
    expect(terms == ("t.>", options), f"the terms of the channel are {terms}")
    expect(await directory.unregister_consumer("c", "me"), "the consumer was not registered")
    expect(await directory.destroy_channel("c"), "the channel could not be destroyed")
    found = await directory.channels()
    expect(found == [], f"after it was destroyed, the channels are {found}")


FEATURES: Final = promises_in(globals())
