"""The contract of brokers: promises that are written once and tested on any broker.

    @pytest.mark.parametrize("promise", CONTRACT, ids=str)
    def test_contract(promise: Promise) -> None:
        simulate(lambda simulation: promise(lambda: MyBroker(world(simulation))))

A promise gets a function that makes a broker, or an async context manager that gives one, and tests a new broker. It
runs in virtual time and in real time. `check_broker` tests all promises. A broken promise raises BrokenPromise, which
contains the promise and the observation. A feature that the broker lacks must be refused with Unsupported: see
`features.py`. Promises about limits of size, capacity and rights are in `limits.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from trunkline.brokers.broker import Feature
from trunkline.delivery.fates import Fate
from trunkline.delivery.options import Delivery
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import Closed, DuplicateName
from trunkline.message import Message, MessageType
from trunkline.testing.features import FEATURES
from trunkline.testing.limits import LIMITS
from trunkline.testing.trial import (
    END,
    SOON_S,
    BrokenPromise,
    Guest,
    Make,
    Trial,
    expect,
    promise,
    promises_in,
    raises,
    text,
    until,
    within,
)
from trunkline.topic import MAX_TOPIC_CHARS

# Delivery


@promise
async def reaches_all_who_match(trial: Trial) -> None:
    """A publish reaches every stream on its topic and no other. Without subscribers it is not an error."""
    streams = {topic: [await trial.open(topic) for _ in range(2)] for topic in ("a", "a.b", "a.c", "b.a")}
    for topic in (*streams, "a.b.c", "nobody"):
        await trial.publish(topic, f"for {topic}")
    await trial.end(*streams)
    for topic, both in streams.items():
        for stream in both:
            await trial.has_only(stream, f"for {topic}")


@promise
async def wildcards_match(trial: Trial) -> None:
    """In a pattern * stands for one token and a trailing > for one or more."""
    topics = ["a", "a.b", "a.c", "a.b.c", "b.b", "b.b.c.d"]
    matching = {
        "*": ["a"],
        "a.*": ["a.b", "a.c"],
        "*.b": ["a.b", "b.b"],
        "a.*.c": ["a.b.c"],
        "*.*.*": ["a.b.c"],
        "a.>": ["a.b", "a.c", "a.b.c"],
        "*.b.>": ["a.b.c", "b.b.c.d"],
        ">": topics,
    }
    streams = {pattern: await trial.open(pattern) for pattern in matching}
    for topic in topics:
        await trial.publish(topic, topic)
    await trial.end(*topics)
    for pattern, wanted in matching.items():
        await trial.has_only(streams[pattern], *wanted, ends=len(wanted))


@promise
async def streams_are_independent(trial: Trial) -> None:
    """Each stream gets every message, independent of the speed of the others."""
    streams = [await trial.open("t") for _ in range(3)]
    for number in range(6):
        await trial.publish("t", str(number))
        await trial.takes(streams[0], str(number))
        if number % 2:
            await trial.takes(streams[1], str(number // 2))
    await trial.end("t")
    await trial.has_only(streams[0])
    await trial.has_only(streams[1], "3", "4", "5")
    await trial.has_only(streams[2], *"012345")


@promise
async def order_is_kept(trial: Trial) -> None:
    """Messages of one publisher on one topic arrive in order, single or in batches, whatever other publishers do."""
    streams = [await trial.open("t.*"), await trial.open("t.a")]

    async def send(sender: str) -> None:
        for number in range(0, 40, 4):
            await trial.publish("t.a", str(number), sender=sender)
            await asyncio.sleep(0)
            await trial.publish("t.a", *map(str, range(number + 1, number + 4)), sender=sender)

    async with asyncio.TaskGroup() as group:
        for sender in ("x", "y", "z"):
            group.create_task(send(sender))
    await trial.end("t.a")
    for stream in streams:
        messages = await trial.rest(stream)
        for sender in ("x", "y", "z"):
            numbers = [int(text(message)) for message in messages if message.sender == sender]
            expect(numbers == list(range(40)), f"{stream.name} got {numbers} of {sender}")


@promise
async def an_open_stream_sees_the_next_publish(trial: Trial) -> None:
    """An open subscription gets the next publish, without a sleep."""
    for number in range(5):
        async with trial.broker.subscribe("t") as stream:
            await trial.publish("t", str(number))
            await trial.takes(stream, str(number))


@promise
async def nothing_from_before_is_seen(trial: Trial) -> None:
    """A subscription does not get earlier messages."""
    await trial.publish("t", "before")
    async with trial.broker.subscribe("t") as stream:
        await trial.publish("t", "after")
        await trial.end("t")
        await trial.has_only(stream, "after")


@promise
async def messages_arrive_unchanged(trial: Trial) -> None:
    """Every header field and every byte of the payload arrives unchanged; only `seq` is set by the broker."""
    now_ns = trial.broker.world.time_ns()
    async with trial.broker.subscribe(">") as stream:
        bare = trial.message("t")
        large = trial.message("x" * MAX_TOPIC_CHARS, "0123456789abcdef" * 65536)
        for sent in (bare, large, full_message(trial, now_ns)):
            await trial.send([sent])
            got = await trial.take(stream)
            for field in Message.__struct_fields__:
                before, after = getattr(sent, field), getattr(got, field)
                expect(field == "seq" or before == after, f"{field} was {before!r:.80} and arrived as {after!r:.80}")
            if sent.requires_ack:
                stream.ack(got)


def full_message(trial: Trial, now_ns: int) -> Message:
    """A message that uses every header field the broker can carry."""
    features = trial.broker.features
    return Message(
        id=trial.broker.world.uuid7(),
        topic="t.é.1",
        payload=bytes(range(256)),
        timestamp_ns=now_ns,
        sender="a sender",
        content_type="application/x-test",
        type=MessageType.REQUEST,
        recipient="a recipient",
        priority=75 if Feature.PRIORITY in features else 50,
        ttl_s=3600.5,
        request_id="a request",
        correlation_id="a correlation",
        reply_to="a.reply",
        attempts=2,
        requires_ack=Feature.ACKNOWLEDGEMENT in features,
        encoding="zlib",
        schema="a.schema/1",
        trace="00-0123-45-01",
        headers={"a": "1", "ü": "…"},
    )


@promise
async def filters_let_in_what_fits(trial: Trial) -> None:
    """With `where`, a stream gets matching messages, and the rest counts as filtered; `dedupe_s` accepts an id once."""
    chosen = await trial.open("t", Delivery(where="sender == 'x'"))
    once = await trial.open("t", Delivery(dedupe_s=60))
    for sender in ("x", "y"):
        twice = trial.message("t", sender, sender=sender)
        await trial.send([twice])
        await trial.send([twice])
    await trial.publish("t", END, sender="x")
    await trial.has_only(chosen, "x", "x")
    await trial.has_only(once, "x", "y")
    for stream in (chosen, once):
        expect(stream.account().filtered == 2, f"{stream.name} says {stream.account()}")


@promise
async def explain_tells_one_fate_for_each_subscriber(trial: Trial) -> None:
    """Each subscriber at the time of the publish has exactly one fate of the message; later ones have none."""
    takes = await trial.open("t")
    picky = await trial.open("t", Delivery(where="sender == 'x'"))
    waits = await trial.open("t")
    full = await trial.open("t", Delivery(capacity=1, overflow=Overflow.DROP_OLDEST))
    await trial.publish("t", "1", sender="y")
    first = await trial.take(takes)
    # The inbox that drops messages must have the first message before the second arrives.
    await until(lambda: full.depth == 1, lambda: f"{full.name} has {full.depth} messages")
    await trial.publish("t", "2", sender="y")
    await trial.take(takes)
    await until(lambda: full.account().dropped == 1, lambda: f"{full.name} says {full.account()}")
    late = await trial.open("t")

    wanted = {
        takes.name: Fate.DELIVERED,
        picky.name: Fate.FILTERED,
        waits.name: Fate.IN_FLIGHT,
        full.name: Fate.DROPPED,
    }
    await trial.ended(first, wanted)
    await waits.aclose()
    await late.aclose()
    # The server of a remote subscriber may notice slightly later that it has left.
    await trial.broker.flush()
    await trial.ended(first, {**wanted, waits.name: Fate.DROPPED})


@promise
async def what_is_large_arrives(trial: Trial) -> None:
    """A batch above the frame size arrives completely, unchanged and in order, also in a group."""
    texts = [str(number) * 400_000 for number in range(8)]
    plain = await trial.open("t")
    member = await trial.open("t", Delivery(group="g")) if await trial.offers(Feature.GROUPS) else None
    await trial.publish("t", *texts)
    for stream in (plain, member):
        if stream is not None:
            got = [text(await trial.take(stream)) for _ in texts]
            expect(got == texts, f"{stream.name} got {[(each[:1], len(each)) for each in got]}")


@promise
async def what_expired_is_not_delivered(trial: Trial) -> None:
    """A message past its ttl is not delivered but counted as expired; one within its ttl is delivered."""
    stream = await trial.open("t")
    await trial.publish("t", "late", ttl_s=SOON_S)
    await trial.arrived(1, stream)
    await asyncio.sleep(2 * SOON_S)
    await trial.publish("t", "in time", ttl_s=60)
    await trial.end("t")
    await trial.has_only(stream, "in time")
    expect(stream.account().expired == 1, f"{stream.name} says {stream.account()}")


# Receiving, and the end of a stream


@promise
async def recv_ends_with_none(trial: Trial) -> None:
    """A stopped stream accepts nothing new and returns what it has; then, and when it is closed, recv returns None."""
    stopped, closed, waited = [await trial.open("t") for _ in range(3)]
    await trial.publish("t", "1", "2")
    await trial.arrived(6, stopped, closed, waited)
    stopped.stop()
    await closed.aclose()
    await trial.publish("t", "3")
    await trial.takes(stopped, "1", "2")
    await trial.takes(waited, "1", "2", "3")
    waiting = trial.start(waited.recv())
    await asyncio.sleep(0)
    await waited.aclose()
    async with within("a recv that waited while its stream was closed did not return"):
        expect(await waiting is None, "a recv that waited while its stream was closed returned a message")
    for stream in (stopped, closed, waited):
        await trial.is_over(stream)
        await trial.is_over(stream)


@promise
async def try_recv_tells_empty_from_closed(trial: Trial) -> None:
    """try_recv never waits: it raises StreamEmpty if there is no message, StreamClosed if there will be none."""
    stream = await trial.open("t")
    trial.is_empty(stream)
    await trial.publish("t", "1")
    await trial.arrived(1, stream)
    expect(text(stream.try_recv()) == "1", "try_recv gave another message than was published")
    trial.is_empty(stream)
    await stream.aclose()
    await trial.is_over(stream)


@promise
async def iteration_and_batches_agree(trial: Trial) -> None:
    """recv, async for and batches return the same messages in the same order; a batch is never empty or too large."""
    one_by_one, iterated, batched = [await trial.open("t") for _ in range(3)]
    wanted = [str(number) for number in range(10)]
    await trial.publish("t", *wanted)
    await trial.arrived(30, one_by_one, iterated, batched)
    for stream in (iterated, batched):
        stream.stop()
    await trial.takes(one_by_one, *wanted)
    async with within("iteration over a stopped stream did not end"):
        got = [text(message) async for message in iterated]
        batches = [[text(message) for message in batch] async for batch in batched.batches(max_size=3)]
    expect(got == wanted, f"async for gave {got}")
    expect([each for batch in batches for each in batch] == wanted, f"batches gave {batches}")
    expect(all(1 <= len(batch) <= 3 for batch in batches), f"batches of at most 3 were {batches}")


@promise
async def several_tasks_may_take(trial: Trial) -> None:
    """Tasks that wait on one stream share its messages: each goes to one task, and none waits beside a message."""
    stream = await trial.open("t")
    takers = [trial.start(stream.recv()) for _ in range(6)]
    await asyncio.sleep(0)
    await trial.publish("t", "0")
    await trial.publish("t", "1", "2", "3", "4", "5")
    _, waiting = await asyncio.wait(takers, timeout=SOON_S)
    left = stream.depth
    for taker in waiting:
        taker.cancel()
    await asyncio.wait(takers)
    expect(not waiting, f"{len(waiting)} of 6 tasks wait in recv while {left} messages wait to be taken")
    got = sorted(text(message) for taker in takers if (message := taker.result()) is not None)
    expect(got == list("012345"), f"six tasks got {got}")


@promise
async def cancelled_recv_loses_nothing(trial: Trial) -> None:
    """A cancelled recv takes no message, even if one arrives at the same moment."""
    stream = await trial.open("t")
    got: list[str] = []
    for number in range(6):
        receiving = trial.start(stream.recv())
        await asyncio.sleep(0)
        if number % 2:
            await trial.publish("t", str(number))
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            if (message := await receiving) is not None:
                got.append(text(message))
    await trial.end("t")
    got += [text(message) for message in await trial.rest(stream)]
    expect(got == ["1", "3", "5"], f"of 1, 3 and 5 arrived {got}")


@promise
async def closing_a_stream_concerns_it_alone(trial: Trial) -> None:
    """Closing a stream ends delivery to it and to no other; closing twice is allowed."""
    streams = [await trial.open("t") for _ in range(5)]
    names = [stream.name for stream in streams]
    for leaver in (2, 0, 4, 1):
        await streams[leaver].aclose()
        await streams[leaver].aclose()
        names.remove(streams[leaver].name)
        expect(sorted(trial.broker.subscribers("t")) == sorted(names), "the wrong subscriber was removed")
        await trial.publish("t", f"without {leaver}")
        await trial.is_over(streams[leaver])
        for stream in streams:
            if stream.name in names:
                await trial.takes(stream, f"without {leaver}")


@promise
async def what_was_not_taken_gets_a_fate(trial: Trial) -> None:
    """Closing a stream with messages leaves none in flight: they are dropped, with a recorded fate."""
    stream = await trial.open("t")
    sent = await trial.publish("t", "1", "2", "3")
    await trial.arrived(3, stream)
    first = await trial.take(stream)
    waiting = stream.unfinished()
    await stream.aclose()
    account = stream.account()
    expect((account.delivered, account.dropped, account.in_flight) == (1, 2, 0), f"1 of 3 was taken, then: {account}")
    fates = [outcome.fate for message in (first, *waiting) for outcome in trial.broker.served.outcomes(message)]
    expect(fates == [Fate.DELIVERED, Fate.DROPPED, Fate.DROPPED], f"the fates of {len(sent)} messages are {fates}")


@promise
async def closing_the_broker_ends_everything(trial: Trial) -> None:
    """Closing the broker ends all streams; publish and subscribe then raise Closed; closing twice is allowed."""
    streams = [await trial.open("t"), await trial.open("t"), await trial.open(">")]
    waiting = trial.start(streams[0].recv())
    await asyncio.sleep(0)
    async with within("closing the broker did not return"):
        await trial.broker.aclose()
        await trial.broker.aclose()
    async with within("a recv that waited while the broker was closed did not return"):
        expect(await waiting is None, "a recv that waited while the broker was closed returned a message")
    for stream in streams:
        await trial.is_over(stream)
        await stream.aclose()
    with raises(Closed, "publish on a closed broker"):
        await trial.publish("t", "too late")
    with raises(Closed, "subscribe on a closed broker"):
        trial.broker.subscribe("t")


@promise
async def names_are_unique(trial: Trial) -> None:
    """The name of a subscriber is refused to a second one. The first is not affected."""
    stream = await trial.open("t", Delivery(name="me"))
    expect(stream.name == "me", f"it asked for the name 'me' and got {stream.name!r}")
    with raises(DuplicateName, "subscribing with a name that is taken"):
        trial.broker.subscribe("t", Delivery(name="me"))
    await trial.publish("t", "1")
    await trial.end("t")
    await trial.has_only(stream, "1")
    await stream.aclose()
    async with trial.broker.subscribe("t", Delivery(name="me")) as stream:
        await trial.publish("t", "2")
        await trial.takes(stream, "2")


@promise
async def taps_see_what_passes(trial: Trial) -> None:
    """A tap sees each matching message, in order, until it is stopped; streams still get all of them."""
    seen: list[str] = []
    stream = await trial.open("t.a")
    stop = trial.broker.tap("t.*", lambda message: seen.append(text(message)))
    await trial.publish("t.a", "1")
    await trial.publish("t.a", "2", "3")
    await trial.publish("other", "x")
    await until(lambda: len(seen) >= 3, lambda: f"the tap saw {seen} of 1, 2, 3")
    stop()
    await trial.publish("t.a", "4")
    await trial.end("t.a")
    await trial.has_only(stream, "1", "2", "3", "4")
    expect(seen == ["1", "2", "3"], f"the tap saw {seen}")


CONTRACT: Final = (*promises_in(globals()), *FEATURES, *LIMITS)


async def check_broker(make: Make, guest: Guest | None = None) -> None:
    """Test every promise, each on a new broker; raises an ExceptionGroup of all that are broken."""
    broken: list[BrokenPromise] = []
    for each in CONTRACT:
        try:
            # In a separate task: in Python 3.11 a TaskGroup that fails leaves its task marked as cancelled, and in
            # the first releases no timeout works in such a task any more.
            await asyncio.create_task(each(make, guest))
        except BrokenPromise as error:
            broken.append(error)
    if broken:
        raise ExceptionGroup(f"{len(broken)} of {len(CONTRACT)} promises are broken", broken)
