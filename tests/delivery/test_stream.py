"""The stream: ways of taking, acknowledgement, stopping and draining, and streams that were never closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from trunkline import Delivery, Fate, Message, Overflow, Retry, StreamClosed
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.subscribers import DEPARTED
from trunkline.testing import Simulation
from trunkline.testing.trial import Trial, text

SOON = Retry(attempts=3, delay_s=0.5, factor=2, jitter=0)
ACK = Delivery(ack=True, retry=SOON)


@contextmanager
def no_spinning() -> Iterator[None]:
    """Fail if the loop makes no progress for a second: a coroutine that never waits cannot be stopped otherwise."""

    def fail(_: int, frame: FrameType | None) -> None:
        raise AssertionError(f"the event loop is stuck in {frame}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Taking


async def test_what_it_is_called_and_how_much_waits(trial: Trial) -> None:
    stream = await trial.open("t.*", Delivery(name="me"))
    assert (stream.name, stream.pattern, stream.depth, stream.closed) == ("me", "t.*", 0, False)
    await trial.publish("t.a", "1", "2")
    assert stream.depth == 2
    await stream.aclose()
    assert (stream.depth, stream.closed) == (0, True)


async def test_batches_take_what_is_there(trial: Trial) -> None:
    stream = await trial.open("t")
    got: list[list[str]] = []

    async def take() -> None:
        async for batch in stream.batches(max_size=4):
            got.append([text(message) for message in batch])

    taking = trial.start(take())
    await asyncio.sleep(1)
    for batch in ("1", "23", "456789"):
        await trial.publish("t", *batch)
        await asyncio.sleep(1)
    stream.stop()
    await taking
    assert got == [["1"], ["2", "3"], ["4", "5", "6", "7"], ["8", "9"]]
    assert stream.account().delivered == 9


@pytest.mark.parametrize("priority", [10, 90])
async def test_iteration_sees_priorities_that_come_while_it_runs(trial: Trial, priority: int) -> None:
    stream = await trial.open("t")
    await trial.publish("t", "1", "2", "3")
    got: list[str] = []
    async for message in stream:
        got.append(text(message))
        if len(got) == 1:
            await trial.publish("t", "other", priority=priority)
            stream.stop()
    assert got == (["1", "other", "2", "3"] if priority > 50 else ["1", "2", "3", "other"])


async def test_leaving_a_loop_early_loses_nothing(trial: Trial) -> None:
    stream = await trial.open("t")
    sent = await trial.publish("t", "1", "2", "3")
    async for message in stream:
        assert message.id == sent[0].id
        break
    assert stream.depth == 2
    trial.balanced()
    await trial.takes(stream, "2", "3")


async def test_a_loop_that_is_cancelled_loses_nothing(trial: Trial) -> None:
    stream = await trial.open("t")
    got: list[str] = []

    async def take() -> None:
        async for message in stream:
            got.append(text(message))
            await asyncio.sleep(1)

    taking = trial.start(take())
    await trial.publish("t", "1", "2", "3")
    await asyncio.sleep(1.5)
    taking.cancel()
    await asyncio.wait([taking])
    trial.balanced()
    assert got == ["1", "2"]
    await trial.takes(stream, "3")
    await trial.publish("t", "4")
    await trial.takes(stream, "4")


async def test_what_is_being_handled_in_a_loop_is_known_as_delivered(trial: Trial) -> None:
    """Several tasks may iterate over one stream. The fates of their messages are known at every moment."""
    stream = await trial.open("t")
    taken: list[Message] = []

    async def take(pause_s: float) -> None:
        async for message in stream:
            taken.append(message)
            await asyncio.sleep(pause_s)

    takers = [trial.start(take(pause_s)) for pause_s in (0.3, 1, 1.7)]
    for number in range(8):
        await trial.publish("t", str(number))
        await asyncio.sleep(0.4)
        for message in taken:
            fates = [outcome.fate for outcome in trial.broker.served.outcomes(message)]
            assert fates == [Fate.DELIVERED], f"{text(message)} was taken, and is {fates}"
    stream.stop()
    await asyncio.gather(*takers)
    assert sorted(map(text, taken)) == list("01234567")


class CountingLedger(Ledger):
    def __init__(self) -> None:
        self.fates = 0

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        self.fates += count

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        self.fates += 1


@pytest.mark.parametrize("tasks", [1, 2, 3])
async def test_tasks_that_share_a_stream_count_each_message_once(trial: Trial, tasks: int) -> None:
    stream = await trial.open("t")
    stream.inbox.ledger = ledger = CountingLedger()
    taken: list[Message] = []

    async def take() -> None:
        async for message in stream:
            taken.append(message)
            await asyncio.sleep(0)

    takers = [trial.start(take()) for _ in range(tasks)]
    for number in range(20):
        await trial.publish("t", *(f"{number}.{each}" for each in range(50)))
        await asyncio.sleep(0)
    stream.stop()
    await asyncio.gather(*takers)
    assert len({message.seq for message in taken}) == 1000
    assert ledger.fates == 1000
    assert stream.account().delivered == 1000


# Acknowledgement


async def test_a_message_that_requires_it_is_acknowledged_in_a_plain_stream(trial: Trial) -> None:
    stream = await trial.open("t", Delivery(lease_s=1, retry=SOON))
    await trial.publish("t", "plain")
    await trial.publish("t", "must", requires_ack=True)
    await trial.publish("t", "plain too")
    messages = {text(message): message for message in [await trial.take(stream) for _ in range(3)]}
    account = stream.account()
    assert (account.delivered, account.in_flight) == (2, 1)
    assert not stream.ack(messages["plain"]), "what was delivered by taking needs no ack"
    assert stream.extend(messages["must"])
    assert stream.ack(messages["must"])
    assert stream.account().delivered == 3


@pytest.mark.parametrize("way", ["loop", "batches"])
async def test_loops_and_batches_hold_what_requires_an_ack(trial: Trial, way: str) -> None:
    stream = await trial.open("t", Delivery(lease_s=1, retry=SOON))
    for number in range(6):
        await trial.publish("t", str(number), requires_ack=number % 2 == 1)
    stream.stop()
    seen: list[tuple[str, int]] = []

    def handle(message: Message) -> None:
        seen.append((text(message), message.attempts))
        trial.balanced()
        if message.attempts:
            stream.ack(message)

    if way == "loop":
        async for message in stream:
            handle(message)
    else:
        async for batch in stream.batches(max_size=2):
            for message in batch:
                handle(message)
    assert seen[:6] == [(str(number), 0) for number in range(6)]
    assert sorted(seen[6:]) == [("1", 1), ("3", 1), ("5", 1)]
    account = stream.account()
    assert (account.delivered, account.in_flight) == (6, 0)


async def test_nack_reject_and_extend(trial: Trial) -> None:
    stream = await trial.open("t", Delivery(ack=True, lease_s=1, retry=SOON))
    await trial.publish("t", "1", "2", "3")
    first, second, third = [await trial.take(stream) for _ in range(3)]
    assert stream.nack(first) == 0.5
    assert stream.nack(first) is None
    stream.reject(second, "not for me")
    await asyncio.sleep(0.4)
    assert stream.extend(third)
    again = await trial.take(stream)
    assert (text(again), again.attempts) == ("1", 1)
    assert stream.nack(again) == 1
    assert stream.ack(third)
    last = await trial.take(stream)
    assert stream.nack(last, "gave up") is None
    letters = [(text(letter.message), letter.reason) for letter in trial.broker.served.dead_letters]
    assert letters == [("2", "Reject: not for me"), ("1", "Nacked: gave up")]
    account = stream.account()
    assert (account.delivered, account.dead, account.in_flight) == (1, 2, 0)


# Stopping, and coming to the end


async def test_a_stopped_stream_waits_for_what_may_come_back(trial: Trial) -> None:
    stream = await trial.open("t", ACK)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    stream.stop()
    waiting = trial.start(stream.recv())
    await asyncio.sleep(1)
    assert not waiting.done()
    stream.nack(message)
    again = await waiting
    assert again is not None
    assert stream.ack(again)
    assert await stream.recv() is None


async def test_try_recv_on_a_stopped_stream_is_empty_as_long_as_something_may_come_back(trial: Trial) -> None:
    stream = await trial.open("t", ACK)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    stream.stop()
    trial.is_empty(stream)
    stream.nack(message)
    trial.is_empty(stream)
    await trial.arrived(1, stream)
    assert stream.ack(stream.try_recv())
    with pytest.raises(StreamClosed):
        stream.try_recv()


async def test_a_stopped_stream_that_holds_all_it_may_waits_for_an_ack(trial: Trial) -> None:
    stream = await trial.open("t", Delivery(ack=True, capacity=1))
    await trial.publish("t", "1")
    message = await trial.take(stream)
    await trial.publish("t", "2")
    stream.stop()
    with no_spinning():
        waiting = trial.start(stream.recv())
        await asyncio.sleep(1)
        assert not waiting.done()
        stream.ack(message)
        second = await waiting
    assert second is not None
    assert text(second) == "2"
    stream.ack(second)


@pytest.mark.parametrize("when", ["before the stop", "after the stop"])
async def test_all_who_wait_at_the_end_are_let_go(trial: Trial, when: str) -> None:
    stream = await trial.open("t", ACK)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    waiting = [trial.start(stream.recv()) for _ in range(4)] if when == "before the stop" else []
    await asyncio.sleep(1)
    stream.stop()
    waiting = waiting or [trial.start(stream.recv()) for _ in range(4)]
    await asyncio.sleep(1)
    assert stream.ack(message)
    _, left = await asyncio.wait(waiting, timeout=60)
    assert not left, f"{len(left)} of 4 tasks wait for ever on a stream that has ended"
    assert [task.result() for task in waiting] == [None] * 4


async def test_drained_returns_when_all_was_taken_and_worked_on(trial: Trial) -> None:
    stream = await trial.open("t", ACK)
    await trial.publish("t", "1", "2")

    async def work() -> None:
        while (message := await stream.recv()) is not None:
            await asyncio.sleep(1)
            stream.ack(message)

    worker = trial.start(work())
    await asyncio.sleep(0.5)
    stream.stop()
    await stream.drained()
    assert not stream.unfinished()
    assert stream.account().delivered == 2
    await worker


async def test_drained_waits_for_the_slowest_of_several(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t", ACK)

    async def work() -> None:
        while (message := await stream.recv()) is not None:
            await asyncio.sleep(float(text(message)))
            stream.ack(message)

    workers = [trial.start(work()) for _ in range(3)]
    await trial.publish("t", "5")
    await trial.publish("t", "1")
    await asyncio.sleep(0.5)
    stream.stop()
    await stream.drained()
    assert simulation.now() == pytest.approx(5)
    assert not stream.unfinished()
    async with asyncio.timeout(60):
        await asyncio.gather(*workers)


async def test_drained_returns_even_if_nobody_asks_for_more(trial: Trial) -> None:
    """A consumer that takes some messages, acknowledges them and leaves has finished as well."""
    stream = await trial.open("t", ACK)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    stream.stop()
    draining = trial.start(stream.drained())
    await asyncio.sleep(1)
    assert not draining.done()
    assert stream.ack(message)
    async with asyncio.timeout(60):
        await draining


async def test_drained_returns_at_once_if_nobody_takes(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t")
    await trial.publish("t", "1", "2")
    stream.stop()
    await stream.drained()
    assert simulation.now() == 0
    assert [text(message) for message in stream.unfinished()] == ["1", "2"]


@pytest.mark.parametrize("group", [None, "g"])
async def test_drained_returns_when_the_stream_is_closed(trial: Trial, group: str | None) -> None:
    stream = await trial.open("t", Delivery(group=group, ack=True))
    await trial.publish("t", "1", "2")
    await trial.take(stream)
    await trial.open("t", Delivery(group=group, ack=True))
    stream.stop()
    draining = trial.start(stream.drained())
    await asyncio.sleep(1)
    assert not draining.done()
    await stream.aclose()
    async with asyncio.timeout(60):
        await draining


async def test_quiet_lets_all_go_who_wait_for_it(trial: Trial) -> None:
    stream = await trial.open("t", ACK)
    await stream.quiet()
    await trial.publish("t", "1", "2")
    waiting = [trial.start(stream.quiet()) for _ in range(3)]
    first, second = await trial.take(stream), await trial.take(stream)
    stream.ack(first)
    stream.nack(second)
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in waiting)
    stream.ack(await trial.take(stream))
    again = trial.start(stream.recv())
    _, left = await asyncio.wait(waiting, timeout=60)
    assert not left, f"{len(left)} of 3 tasks wait for ever"
    assert not again.done()


async def test_quiet_returns_even_if_nobody_asks_for_more(trial: Trial) -> None:
    stream = await trial.open("t", ACK)
    await trial.publish("t", "1")
    waiting = trial.start(stream.quiet())
    message = await trial.take(stream)
    await asyncio.sleep(1)
    assert not waiting.done()
    assert stream.ack(message)
    async with asyncio.timeout(60):
        await waiting


# Streams that were never closed


async def abandon(trial: Trial, delivery: Delivery = Delivery()) -> str:
    """Subscribe, and drop the stream. Returns the name of the subscriber."""
    stream = trial.broker.subscribe("t", delivery)
    await stream.opened()
    name = stream.name
    with pytest.warns(ResourceWarning, match="was never closed: use `async with`, or aclose"):
        del stream
    return name


async def test_an_abandoned_stream_is_removed_by_the_next_publish(trial: Trial) -> None:
    before = await trial.open("t")
    lost = await abandon(trial)
    after = await trial.open("t")
    assert lost in trial.broker.subscribers("t")
    await trial.publish("t", "1", "2")
    for stream in (before, after):
        await trial.takes(stream, "1", "2")
    assert trial.broker.subscribers("t") == [before.name, after.name]
    departed = trial.broker.served.accounts()[""]
    assert departed.delivered == departed.in_flight == 0


@pytest.mark.parametrize("overflow", Overflow)
async def test_a_full_abandoned_stream_holds_nobody_up(
    trial: Trial, simulation: Simulation, overflow: Overflow
) -> None:
    stream = trial.broker.subscribe("t", Delivery(capacity=1, overflow=overflow))
    healthy = await trial.open("t")
    await trial.publish("t", "1")
    with pytest.warns(ResourceWarning):
        del stream
    await trial.publish("t", "2")
    await trial.takes(healthy, "1", "2")
    assert trial.broker.subscribers("t") == [healthy.name]
    assert simulation.now() == 0


async def test_who_waits_for_room_in_a_stream_is_let_go_when_it_is_abandoned(
    trial: Trial, simulation: Simulation
) -> None:
    stream = trial.broker.subscribe("t", Delivery(capacity=1))
    waiting = [trial.start(trial.publish("t", str(number))) for number in range(3)]
    await asyncio.sleep(1)
    assert [task.done() for task in waiting].count(False) == 2
    with pytest.warns(ResourceWarning):
        del stream
    await asyncio.gather(*waiting)
    assert simulation.now() == 1
    await trial.publish("t", "last")
    assert trial.broker.subscribers("t") == []


async def test_an_abandoned_member_of_a_group_loses_no_message(trial: Trial) -> None:
    await abandon(trial, Delivery(group="g"))
    healthy = await trial.open("t", Delivery(group="g"))
    for number in range(4):
        await trial.publish("t", str(number))
    await trial.takes(healthy, "0", "1", "2", "3")
    assert trial.broker.subscribers("t") == [healthy.name]


async def test_what_an_abandoned_member_had_goes_to_the_others(trial: Trial) -> None:
    lost = trial.broker.subscribe("t", Delivery(group="g"))
    await trial.publish("t", "1", "2")
    healthy = await trial.open("t", Delivery(group="g"))
    with pytest.warns(ResourceWarning):
        del lost
    for number in ("3", "4"):
        await trial.publish("t", number)
    got = [text(await trial.take(healthy)) for _ in range(4)]
    assert sorted(got) == ["1", "2", "3", "4"]


async def test_what_waits_for_room_at_an_abandoned_member_goes_to_the_others(trial: Trial) -> None:
    lost = trial.broker.subscribe("t", Delivery(group="g", capacity=1))
    await trial.publish("t", "1")
    waiting = trial.start(trial.publish("t", "2"))
    await asyncio.sleep(1)
    assert not waiting.done()
    healthy = await trial.open("t", Delivery(group="g", capacity=5))
    with pytest.warns(ResourceWarning):
        del lost
    await waiting
    await trial.publish("t", "3")
    got = [text(await trial.take(healthy)) for _ in range(3)]
    assert sorted(got) == ["1", "2", "3"]


async def test_a_group_that_everybody_abandoned_counts_what_it_drops(trial: Trial) -> None:
    for _ in range(2):
        await abandon(trial, Delivery(group="g"))
    await trial.publish("t", "1")
    account = trial.broker.served.accounts()[DEPARTED]
    assert (account.accepted, account.dropped) == (1, 1)
    assert trial.broker.subscribers("t") == []


async def test_a_stream_that_was_stopped_but_never_closed_is_removed_too(trial: Trial) -> None:
    stream = trial.broker.subscribe("t")
    stream.stop()
    with pytest.warns(ResourceWarning, match="was never closed"):
        del stream
    healthy = await trial.open("t")
    await trial.publish("t", "1")
    await trial.takes(healthy, "1")
    assert trial.broker.subscribers("t") == [healthy.name]


async def test_a_closed_stream_goes_without_a_warning(trial: Trial) -> None:
    async with trial.broker.subscribe("t") as stream:
        pass
    await stream.aclose()
    del stream
