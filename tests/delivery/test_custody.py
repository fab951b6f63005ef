"""Custody: leases, pauses between attempts, dead letters, and redelivery."""

from __future__ import annotations

import asyncio

import pytest

from trunkline import Delivery, Fate, Message, Overflow, Retry, Stream, UnknownHandler, UsageError
from trunkline.delivery.dead_letters import Cause, DeadLetter
from trunkline.errors import InvalidPayload, NotAcknowledged
from trunkline.testing import Simulation
from trunkline.testing.simulate import START_NS
from trunkline.testing.trial import Trial, text

S = 1_000_000_000
TRY = Retry(attempts=3, delay_s=0.5, factor=2, jitter=0)
LEASED = Delivery(ack=True, lease_s=1, retry=TRY)


def letters(trial: Trial) -> list[DeadLetter]:
    return list(trial.broker.served.dead_letters)


def fate_of(trial: Trial, message: Message) -> tuple[Fate, str]:
    (outcome,) = trial.broker.served.outcomes(message)
    return outcome.fate, outcome.reason


def held(stream: Stream) -> int:
    return stream.account().in_flight - stream.depth


# Leases


async def test_what_is_not_acknowledged_comes_back_after_lease_and_pause(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    came = []
    for _ in range(3):
        message = await trial.take(stream)
        came.append((simulation.now(), message.attempts))
    assert came == [(0, 0), (1.5, 1), (3.5, 2)]
    await asyncio.sleep(1)
    trial.is_empty(stream)
    (letter,) = letters(trial)
    assert (letter.cause, letter.error_type) == (Cause.NOT_ACKNOWLEDGED, NotAcknowledged.__name__)
    assert letter.message.attempts == 3
    assert [(attempt.number, attempt.at_ns - START_NS) for attempt in letter.attempts] == [
        (1, 1 * S),
        (2, 2.5 * S),
        (3, 4.5 * S),
    ]
    assert {attempt.error for attempt in letter.attempts} == {"NotAcknowledged: not acknowledged within 1 s"}
    assert fate_of(trial, message) == (
        Fate.DEAD,
        "not acknowledged: NotAcknowledged: not acknowledged within 1 s",
    )


async def test_an_acknowledged_message_is_delivered_and_gone(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    assert fate_of(trial, message) == (Fate.IN_FLIGHT, "being handled, attempt 1")
    assert stream.ack(message)
    assert not stream.ack(message)
    assert stream.nack(message) is None
    assert not stream.extend(message)
    await asyncio.sleep(10)
    trial.is_empty(stream)
    account = stream.account()
    assert (account.accepted, account.delivered, account.in_flight) == (1, 1, 0)
    assert fate_of(trial, message) == (Fate.DELIVERED, "")


async def test_a_batch_is_held_and_acknowledged_together(trial: Trial) -> None:
    """Messages that failed, were acknowledged before, or now belong to another member are not changed."""
    stream = await trial.open("t", Delivery(ack=True, lease_s=1, retry=TRY, capacity=5))
    await trial.publish("t", *"12345")
    batches = stream.batches(4)
    batch = await anext(batches)
    assert [text(message) for message in batch] == ["1", "2", "3", "4"]
    assert (held(stream), stream.depth) == (4, 1)
    assert stream.nack(batch[1]) == 0.5
    assert stream.ack(batch[2])
    assert stream.ack_many(batch) == 2
    assert stream.ack_many(batch) == 0
    account = stream.account()
    assert (account.delivered, account.in_flight, account.balanced) == (3, 2, True)
    assert fate_of(trial, batch[0]) == fate_of(trial, batch[3]) == (Fate.DELIVERED, "")
    assert fate_of(trial, batch[1])[0] is Fate.IN_FLIGHT
    (late,) = await anext(batches)
    assert text(late) == "5"
    await asyncio.sleep(1.1)
    assert stream.ack_many([late, batch[1]]) == 0
    again = [await anext(batches), await anext(batches)]
    assert sorted((text(message), message.attempts) for found in again for message in found) == [("2", 1), ("5", 1)]
    assert sum(map(stream.ack_many, again)) == 2
    await batches.aclose()
    assert (stream.account().delivered, stream.account().in_flight) == (5, 0)
    assert not letters(trial)


async def test_no_batch_is_larger_than_what_may_be_held(trial: Trial) -> None:
    stream = await trial.open("t", Delivery(ack=True, capacity=3, overflow=Overflow.DROP_NEWEST))
    await trial.publish("t", *"123")
    batches = stream.batches(2)
    first = await anext(batches)
    await trial.publish("t", *"45")
    second = await anext(batches)
    assert [text(message) for message in (*first, *second)] == ["1", "2", "3"]
    stream.ack_many(first)
    assert [text(message) for message in await anext(batches)] == ["4", "5"]
    await batches.aclose()


async def test_an_ack_after_the_lease_counts_for_nothing(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    late = await trial.take(stream)
    await asyncio.sleep(1.1)
    assert not stream.ack(late)
    assert stream.nack(late) is None
    stream.reject(late, "too late")
    trial.balanced()
    assert not letters(trial)
    again = await trial.take(stream)
    assert again.attempts == 1
    assert stream.ack(again)
    assert stream.account().delivered == 1


@pytest.mark.parametrize("way", ["ack", "nack", "reject", "extend"])
async def test_who_is_late_cannot_end_the_lease_of_who_has_it_now(trial: Trial, way: str) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    late = await trial.take(stream)
    now = await trial.take(stream)
    assert (now.id, now.attempts) == (late.id, 1)
    match way:
        case "ack":
            assert not stream.ack(late)
        case "nack":
            assert stream.nack(late) is None
        case "reject":
            stream.reject(late, "too late")
        case "extend":
            assert not stream.extend(late)
    assert stream.account().in_flight == 1
    assert not letters(trial)
    assert stream.ack(now)


async def test_a_lease_can_be_renewed_as_often_as_needed(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    for _ in range(20):
        await asyncio.sleep(0.9)
        assert stream.extend(message)
    trial.is_empty(stream)
    assert simulation.now() == pytest.approx(18)
    assert stream.ack(message)


async def test_renewing_one_lease_leaves_the_others_as_they_were(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t", Delivery(ack=True, lease_s=1, retry=Retry(delay_s=0.1, jitter=0)))
    await trial.publish("t", "1", "2", "3")
    messages = [await trial.take(stream) for _ in range(3)]
    await asyncio.sleep(0.5)
    assert stream.extend(messages[0])
    assert stream.extend(messages[2])
    came = [(text(await trial.take(stream)), round(simulation.now(), 6)) for _ in range(3)]
    assert came == [("2", 1.1), ("1", 1.6), ("3", 1.6)] or came == [("2", 1.1), ("3", 1.6), ("1", 1.6)]


async def test_a_handler_at_work_keeps_its_lease(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1", "2")
    long, forgotten = await trial.take(stream), await trial.take(stream)
    stream.custody.working.add(long.seq)
    await asyncio.sleep(1.4)
    assert held(stream) == 2, "one at work, one that waits for its next attempt"
    again = await trial.take(stream)
    assert again.id == forgotten.id
    assert stream.ack(again)
    await asyncio.sleep(20)
    assert stream.ack(long)
    assert stream.account().delivered == 2


async def test_a_handler_that_stops_working_without_a_word_loses_its_lease(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    stream.custody.working.add(message.seq)
    await asyncio.sleep(5)
    stream.custody.working.discard(message.seq)
    again = await trial.take(stream)
    assert (again.id, again.attempts) == (message.id, 1)


async def test_leases_do_not_go_by_the_wall_clock(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    for seconds in (3600, -7200):
        simulation.jump_wall(seconds)
        await asyncio.sleep(0.4)
    assert stream.ack(message)


# How much may be held


async def test_no_more_is_handed_out_than_the_inbox_may_hold(trial: Trial) -> None:
    stream = await trial.open("t", Delivery(ack=True, capacity=2))
    await trial.publish("t", "1", "2")
    first, second = await trial.take(stream), await trial.take(stream)
    await trial.publish("t", "3")
    trial.is_empty(stream)
    third = trial.start(stream.recv())
    await asyncio.sleep(1)
    assert not third.done()
    assert stream.ack(second)
    message = await third
    assert message is not None
    assert text(message) == "3"
    assert stream.ack(first)
    assert stream.ack(message)


@pytest.mark.parametrize("way", ["ack", "nack", "reject", "give_back", "lease"])
async def test_whatever_ends_a_hold_lets_the_next_be_taken(trial: Trial, way: str) -> None:
    stream = await trial.open("t", Delivery(ack=True, capacity=1, lease_s=5, retry=Retry(delay_s=60, jitter=0)))
    await trial.publish("t", "1")
    message = await trial.take(stream)
    await trial.publish("t", "2")
    waiting = trial.start(stream.recv())
    await asyncio.sleep(1)
    assert not waiting.done()
    match way:
        case "ack":
            stream.ack(message)
        case "nack":
            stream.nack(message)
        case "reject":
            stream.reject(message, "no")
        case "give_back":
            stream.custody.give_back(message)
    async with asyncio.timeout(5):
        got = await waiting
    assert got is not None
    assert text(got) == ("1" if way == "give_back" else "2")


# Attempts


async def test_the_pause_doubles_up_to_its_limit(trial: Trial, simulation: Simulation) -> None:
    retry = Retry(attempts=6, delay_s=1, factor=2, max_delay_s=5, jitter=0)
    stream = await trial.open("t", Delivery(ack=True, retry=retry))
    await trial.publish("t", "1")
    pauses: list[float | None] = []
    waited: list[float] = []
    for _ in range(6):
        message = await trial.take(stream)
        since = simulation.now()
        pauses.append(stream.nack(message, "again"))
        if pauses[-1] is not None:
            await trial.arrived(1, stream)
            waited.append(round(simulation.now() - since, 1))
    assert pauses == [1, 2, 4, 5, 5, None]
    assert waited == [1, 2, 4, 5, 5]


async def test_the_pause_is_spread_by_its_jitter(trial: Trial) -> None:
    stream = await trial.open("t", Delivery(ack=True, capacity=100, retry=Retry(delay_s=1, jitter=0.5)))
    await trial.publish("t", *map(str, range(50)))
    pauses = [stream.nack(await trial.take(stream)) for _ in range(50)]
    assert all(pause is not None and 0.5 <= pause <= 1.5 for pause in pauses)
    assert len(set(pauses)) > 40


async def test_while_it_waits_for_its_next_attempt_it_is_in_flight(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    message = await trial.take(stream)
    stream.nack(message, "not yet")
    assert fate_of(trial, message) == (Fate.IN_FLIGHT, "failed 1 time (Nacked: not yet), waits to retry")
    assert [text(each) for each in stream.unfinished()] == ["1"]
    again = await trial.take(stream)
    assert fate_of(trial, again) == (Fate.IN_FLIGHT, "being handled, attempt 2")


async def test_others_are_delivered_while_one_waits_for_its_next_attempt(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1", "2")
    stream.nack(await trial.take(stream))
    second = await trial.take(stream)
    assert text(second) == "2"
    stream.ack(second)
    await trial.takes(stream, "1")


async def test_what_waits_for_its_next_attempt_keeps_its_place(trial: Trial) -> None:
    """No waiting publisher gets that room: the inbox never holds more than its capacity."""
    stream = await trial.open("t", Delivery(ack=True, capacity=1, overflow=Overflow.BLOCK, retry=TRY))
    await trial.publish("t", "1")
    stream.nack(await trial.take(stream))
    waiting = trial.start(trial.broker.publish([trial.message("t", "2")]))
    await asyncio.sleep(0.4)
    assert stream.depth == 0
    await asyncio.sleep(0.2)
    assert stream.depth == 1
    assert not waiting.done()
    stream.ack(await trial.take(stream))
    await waiting
    await trial.takes(stream, "2")


async def test_a_retry_past_its_ttl_is_expired(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1", ttl_s=0.4)
    message = await trial.take(stream)
    assert stream.nack(message) == 0.5
    await asyncio.sleep(1)
    trial.is_empty(stream)
    trial.balanced()
    assert fate_of(trial, message) == (Fate.EXPIRED, "its ttl of 0.4 s had passed when it was taken")


@pytest.mark.parametrize("end", ["acknowledged", "dead", "expired", "dropped for a newer one"])
async def test_the_story_of_a_message_ends_with_it(trial: Trial, end: str) -> None:
    """Attempts are kept for the dead letter. They are removed with every fate."""
    stream = await trial.open("t", Delivery(ack=True, capacity=1, overflow=Overflow.DROP_OLDEST, retry=TRY))
    await trial.publish("t", "1", ttl_s=0.6)
    message = await trial.take(stream)
    stream.nack(message)
    assert len(stream.custody.history_of(message.seq)) == 1
    await trial.arrived(1, stream)
    match end:
        case "acknowledged":
            stream.ack(await trial.take(stream))
        case "dead":
            stream.reject(await trial.take(stream), "no")
        case "expired":
            await asyncio.sleep(1)
            trial.is_empty(stream)
        case "dropped for a newer one":
            await trial.publish("t", "2")
    assert stream.custody.history_of(message.seq) == []


async def test_given_back_it_goes_first_and_no_attempt_is_counted(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1", "2")
    message = await trial.take(stream)
    assert stream.custody.give_back(message)
    assert not stream.custody.give_back(message)
    trial.balanced()
    again = await trial.take(stream)
    assert (again.id, again.attempts) == (message.id, 0)
    await trial.takes(stream, "2")


# Dead letters


async def test_a_dead_letter_tells_the_whole_story(trial: Trial, simulation: Simulation) -> None:
    stream = await trial.open("t", Delivery(name="billing", ack=True, retry=Retry(attempts=2, delay_s=3, jitter=0)))

    def charge_the_card() -> None:
        raise ValueError("no such card")

    await trial.publish("t", "1", headers={"order": "a1"})
    for _ in range(2):
        message = await trial.take(stream)
        try:
            charge_the_card()
        except ValueError as error:
            stream.custody.fail(message, error)
    trial.balanced()
    (letter,) = letters(trial)
    assert letter.subscriber == "billing"
    assert letter.cause is Cause.HANDLER_FAILED
    assert letter.reason == "ValueError: no such card"
    assert letter.error_type == "ValueError"
    assert "charge_the_card" in letter.traceback
    assert letter.traceback.endswith("ValueError: no such card\n")
    assert [(each.number, each.at_ns - START_NS, each.error) for each in letter.attempts] == [
        (1, 0, "ValueError: no such card"),
        (2, 3 * S, "ValueError: no such card"),
    ]
    assert letter.at_ns == simulation.time_ns()
    assert (letter.message.payload, letter.message.headers, letter.message.attempts) == (b"1", {"order": "a1"}, 2)
    assert stream.account().dead == 1


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (InvalidPayload("not a number"), Cause.INVALID_PAYLOAD),
        (InvalidPayload("says itself that it is not retryable"), Cause.HANDLER_FAILED),
        (KeyError("never"), Cause.HANDLER_FAILED),
        (ValueError("rejected"), Cause.REJECTED),
    ],
)
async def test_what_no_further_attempt_can_help_is_dead_at_once(trial: Trial, error: Exception, cause: Cause) -> None:
    stream = await trial.open("t", Delivery(ack=True, retry=Retry(attempts=5, never=(KeyError,))))
    await trial.publish("t", "1")
    assert stream.custody.fail(await trial.take(stream), error, cause) is None
    (letter,) = letters(trial)
    assert (letter.cause, letter.message.attempts, len(letter.attempts)) == (cause, 1, 1)


async def test_a_replay_goes_to_the_one_that_failed_and_starts_afresh(trial: Trial) -> None:
    failing, other = await trial.open("t", LEASED), await trial.open("t", LEASED)
    await trial.publish("t", "1")
    other.ack(await trial.take(other))
    failing.reject(await trial.take(failing), "no")
    (letter,) = letters(trial)
    trial.broker.served.dead_letters.replay(letter)
    trial.balanced()
    assert failing.account().dead == 0
    assert not letters(trial)
    again = await trial.take(failing)
    assert (again.id, again.attempts) == (letter.message.id, 0)
    assert failing.ack(again)
    assert fate_of_one(trial, again, failing) == (Fate.DELIVERED, "")
    trial.is_empty(other)
    with pytest.raises(UsageError):
        trial.broker.served.dead_letters.replay(letter)


def fate_of_one(trial: Trial, message: Message, stream: Stream) -> tuple[Fate, str]:
    outcomes = {each.subscriber: (each.fate, each.reason) for each in trial.broker.served.outcomes(message)}
    return outcomes[stream.name]


async def test_a_replay_to_one_that_left_is_refused_and_the_letter_stays(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1")
    stream.reject(await trial.take(stream), "no")
    await stream.aclose()
    (letter,) = letters(trial)
    with pytest.raises(UnknownHandler):
        trial.broker.served.dead_letters.replay(letter)
    assert letters(trial) == [letter]


async def test_a_replay_to_a_successor_of_the_same_name_keeps_both_books_right(trial: Trial) -> None:
    """The dead letter stays in the books of the subscriber that left. No count of its successor may become negative."""
    first = await trial.open("t", Delivery(name="worker", ack=True))
    await trial.publish("t", "1")
    first.reject(await trial.take(first), "no")
    await first.aclose()
    second = await trial.open("t", Delivery(name="worker", ack=True))
    (letter,) = letters(trial)
    trial.broker.served.dead_letters.replay(letter)
    trial.balanced()
    account = second.account()
    assert (account.accepted, account.dead, account.in_flight) == (1, 0, 1)
    assert second.ack(await trial.take(second))


# The end


async def test_closing_drops_what_is_held_and_what_waits_and_ends_all_timers(trial: Trial) -> None:
    stream = await trial.open("t", LEASED)
    await trial.publish("t", "1", "2", "3")
    first, second = await trial.take(stream), await trial.take(stream)
    stream.nack(second)
    await stream.aclose()
    trial.balanced()
    account = stream.account()
    assert (account.dropped, account.in_flight) == (3, 0)
    assert not stream.ack(first)
    for message in (first, second):
        assert fate_of(trial, message) == (Fate.DROPPED, "its subscriber left before taking it")
    await asyncio.sleep(100)
    trial.balanced()
    assert not letters(trial)
