"""Promises about limits: sizes, capacities and rights, and the fates of messages that exceed a limit."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from trunkline.brokers.broker import Feature
from trunkline.connect import connect
from trunkline.delivery.fates import Fate
from trunkline.delivery.options import Delivery
from trunkline.delivery.retry import Retry
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import HeadersTooLarge, InboxFull, MessageTooLarge, NotAllowed
from trunkline.message import MAX_HEADER_BYTES
from trunkline.testing.trial import ALLOWED, SOON_S, Trial, expect, promise, promises_in, raises, text, until, within

DROPPING: Final = (Overflow.DROP_OLDEST, Overflow.DROP_NEWEST)


@promise
async def what_is_too_large_is_refused_before_it_leaves(trial: Trial) -> None:
    """A payload or headers above the limit are refused with their size, and not delivered; other messages are."""
    stream = await trial.open("t")
    settings = replace(trial.broker.settings, max_message_bytes=2000)
    async with connect(trial.broker, name="the contract", settings=settings) as bus:
        await bus.publish("t", b"1")
        with raises(MessageTooLarge, "publishing a payload over the limit") as payload:
            await bus.publish("t", b"x" * 2001)
        expect((payload.error.size, payload.error.limit) == (2001, 2000), f"the error says {payload.error}")
        with raises(HeadersTooLarge, "publishing headers over the limit"):
            await bus.publish("t", b"x", headers={"large": "x" * MAX_HEADER_BYTES})
        await bus.publish("t", b"x" * 2000)
        async with within("a flush that nothing holds up did not return"):
            await bus.flush()
    await trial.end("t")
    await trial.has_only(stream, "1", "x" * 2000)


@promise
async def a_capacity_holds(trial: Trial) -> None:
    """A stream never holds more messages than its capacity, whatever the publishers do, singly or in batches."""
    kinds = [*DROPPING, *([Overflow.BLOCK] if await trial.offers(Feature.BACKPRESSURE) else [])]
    for kind in kinds:
        await _overfill(trial, kind)


async def _overfill(trial: Trial, kind: Overflow) -> None:
    """Two publishers send twenty messages each to an inbox of three, which is emptied one by one."""
    topic = f"t.{kind}"
    stream = await trial.open(topic, Delivery(capacity=3, overflow=kind))

    async def send() -> None:
        await trial.publish(topic, *map(str, range(10)))
        for number in range(10, 20):
            await trial.publish(topic, str(number))

    def over() -> bool:
        account = stream.account()
        return account.delivered + account.dropped == 40

    sending = [trial.start(send()) for _ in range(2)]
    most = 0
    while not over():
        await until(lambda: stream.depth > 0 or over(), lambda: f"{kind}: nothing came after {stream.account()}")
        most = max(most, stream.depth)
        if stream.depth:
            stream.try_recv()
    expect(0 < most <= 3, f"{kind}: an inbox for 3 held {most} messages")
    async with within(f"{kind}: the publishers did not return"):
        await asyncio.gather(*sending)


@promise
async def every_policy_leaves_a_fate(trial: Trial) -> None:
    """Of two messages for an inbox of one, `explain` shows which was dropped, and only for that subscriber."""
    takes = await trial.open("t")
    full = {kind: await trial.open("t", Delivery(capacity=1, overflow=kind)) for kind in DROPPING}
    await trial.publish("t", "1")
    await trial.arrived(2, *full.values())
    await trial.publish("t", "2")
    first, second = await trial.take(takes), await trial.take(takes)
    for stream in full.values():
        await _has_dropped(stream)
    oldest, newest = (full[kind].name for kind in DROPPING)
    await trial.ended(first, {takes.name: Fate.DELIVERED, oldest: Fate.DROPPED, newest: Fate.IN_FLIGHT})
    await trial.ended(second, {takes.name: Fate.DELIVERED, oldest: Fate.IN_FLIGHT, newest: Fate.DROPPED})


async def _has_dropped(stream: Stream) -> None:
    await until(lambda: stream.account().dropped == 1, lambda: f"{stream.name} says {stream.account()}")


@promise
async def backpressure_leaves_a_fate(trial: Trial) -> None:
    """A message that an inbox rejects, and a publish cancelled while waiting for room, are dropped only there."""
    if not await trial.offers(Feature.BACKPRESSURE):
        return
    for kind in (Overflow.REJECT, Overflow.BLOCK):
        topic = f"t.{kind}"
        takes = await trial.open(topic)
        full = await trial.open(topic, Delivery(capacity=1, overflow=kind))
        await trial.publish(topic, "1")
        await trial.arrived(1, full)
        first = await trial.take(takes)
        if kind is Overflow.REJECT:
            with raises(InboxFull, "publish into a full inbox that rejects"):
                await trial.publish(topic, "2")
            second = await trial.take(takes)
        else:
            waiting = trial.start(trial.publish(topic, "2"))
            # When other subscribers have it, it has also reached the full inbox.
            second = await trial.take(takes)
            waiting.cancel()
            await asyncio.wait([waiting])
        await _has_dropped(full)
        await trial.ended(first, {takes.name: Fate.DELIVERED, full.name: Fate.IN_FLIGHT})
        await trial.ended(second, {takes.name: Fate.DELIVERED, full.name: Fate.DROPPED})


@promise
async def what_expired_or_died_leaves_a_fate(trial: Trial) -> None:
    """`explain` shows that a message expired or died at one subscriber, and was delivered to another."""
    takes, late = await trial.open("t"), await trial.open("t")
    taking = trial.start(trial.take(takes))
    await trial.publish("t", "1", ttl_s=5 * SOON_S)
    first = await taking
    await trial.arrived(1, late)
    await asyncio.sleep(6 * SOON_S)
    await trial.end("t")
    await trial.has_only(late)
    await trial.ended(first, {takes.name: Fate.DELIVERED, late.name: Fate.EXPIRED})
    if not await trial.offers(Feature.ACKNOWLEDGEMENT):
        return
    takes, fails = await trial.open("u"), await trial.open("u", Delivery(ack=True, retry=Retry(attempts=1)))
    await trial.publish("u", "2")
    second = await trial.take(takes)
    held = await trial.take(fails)
    await trial.ended(second, {takes.name: Fate.DELIVERED, fails.name: Fate.IN_FLIGHT})
    fails.reject(held, "never")
    await until(lambda: fails.account().dead == 1, lambda: f"{fails.name} says {fails.account()}")
    await trial.ended(second, {takes.name: Fate.DELIVERED, fails.name: Fate.DEAD})


@promise
async def rights_hold(trial: Trial) -> None:
    """An identity can publish, subscribe, read and request within its rights, and not beyond them."""
    if not await trial.offers(Feature.RIGHTS):
        return
    if trial.guest is None:
        raise AssertionError("a broker with rules is tried with an identity that they limit: pass `guest`")
    secret = await trial.open("secret.>")
    allowed = await trial.open(ALLOWED)
    async with trial.guest(trial.broker) as guest:
        own = Trial(guest)
        within_rights = await own.open("allowed.*")
        for pattern in ("secret.a", "secret.*", ">", "*.a"):
            with raises(NotAllowed, f"subscribing to {pattern} without the right to"):
                await own.open(pattern)
        with raises(NotAllowed, "publishing without the right to"):
            await own.publish("secret.a", "forged")
        await own.publish("allowed.a", "1")
        await trial.takes(allowed, "1")
        await own.takes(within_rights, "1")
        await trial.publish("secret.a", "2")
        hidden = await trial.take(secret)
        expect(text(hidden) == "2", f"a message of a publisher without the right was delivered: {hidden}")
        expect(
            await guest.explain(hidden.id, hidden) == (None, []),
            "its fates are shown to an identity without a right on it",
        )
        if await own.offers(Feature.STORED):
            store = guest.require_store()
            with raises(NotAllowed, "reading the last message without the right to"):
                await store.last("secret.a")
            last = await store.last("allowed.a")
            expect(last is not None and text(last) == "1", f"the last message on allowed.a is {last}")
        await own.tidy()
    await trial.end("secret.a", "allowed.a")
    await trial.has_only(secret)
    await trial.has_only(allowed)


LIMITS: Final = promises_in(globals())
