"""Dead letters: bounded, in order, found, replayed to the subscriber that failed, removed; texts of errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline import codec
from trunkline.delivery.dead_letters import Attempt, Cause, DeadLetter, DeadLetters, describe, traceback_of
from trunkline.errors import InvalidMessage, InvalidPriority, InvalidTopic, UnknownHandler, UsageError
from trunkline.message import Message


def message(seq: int, **fields: Any) -> Message:
    built = Message(**{"id": f"m{seq}", "topic": "orders", "payload": {"n": seq}, "attempts": 3, **fields})
    return msgspec.structs.replace(built, seq=seq)


def letter(seq: int, subscriber: str = "billing", cause: Cause = Cause.HANDLER_FAILED, **fields: Any) -> DeadLetter:
    return DeadLetter(
        message=message(seq, **fields),
        subscriber=subscriber,
        cause=cause,
        reason="ValueError: no",
        error_type="ValueError",
        traceback="Traceback …",
        attempts=(Attempt(1, 5, "ValueError: no"),),
        at_ns=seq,
    )


class Subscribers:
    """The receivers of replays. Subscribers that have left raise."""

    def __init__(self, *names: str) -> None:
        self.names = list(names) or ["billing", "shipping"]
        self.got: list[tuple[str, Message]] = []

    def redeliver(self, name: str, message: Message, origin: object) -> None:
        if name not in self.names:
            raise UnknownHandler(name, self.names)
        self.got.append((name, message))


def kept(letters: DeadLetters) -> list[int]:
    return [each.message.seq for each in letters]


@pytest.fixture
def subscribers() -> Subscribers:
    return Subscribers()


@pytest.fixture
def letters(subscribers: Subscribers) -> DeadLetters:
    return DeadLetters(10, subscribers.redeliver)


# Keeping


def test_letters_are_kept_oldest_first(letters: DeadLetters) -> None:
    for seq in (3, 1, 2):
        letters.add(letter(seq))
    assert kept(letters) == [3, 1, 2]
    assert len(letters) == 3
    assert (letters.total, letters.evicted) == (3, 0)


def test_beyond_the_bound_the_oldest_goes_and_is_counted(letters: DeadLetters) -> None:
    for seq in range(1, 26):
        letters.add(letter(seq))
        assert len(letters) <= 10
    assert kept(letters) == list(range(16, 26))
    assert (letters.total, letters.evicted) == (25, 15)


def test_a_message_that_dies_again_at_one_subscriber_is_one_letter_and_the_newest(letters: DeadLetters) -> None:
    letters.add(letter(1))
    letters.add(letter(2))
    again = letter(1, cause=Cause.HANDLER_TIMEOUT)
    letters.add(again)
    assert kept(letters) == [2, 1]
    assert list(letters)[-1] is again


def test_a_message_that_died_at_two_subscribers_is_two_letters(letters: DeadLetters) -> None:
    letters.add(letter(1, "billing"))
    letters.add(letter(1, "shipping"))
    assert len(letters) == 2


def test_letters_may_be_changed_while_they_are_looked_at(letters: DeadLetters) -> None:
    for seq in range(1, 6):
        letters.add(letter(seq))
    for each in letters:
        letters.remove(each)
    assert len(letters) == 0


# Finding


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({}, [1, 2, 3, 1]),
        ({"message_id": "m1"}, [1, 1]),
        ({"subscriber": "billing"}, [1, 2, 3]),
        ({"cause": Cause.REJECTED}, [2]),
        ({"message_id": "m1", "subscriber": "shipping"}, [1]),
        ({"message_id": "nobody"}, []),
        ({"subscriber": "billing", "cause": Cause.NOT_ACKNOWLEDGED}, []),
    ],
)
def test_letters_can_be_found(letters: DeadLetters, search: dict[str, Any], found: list[int]) -> None:
    letters.add(letter(1))
    letters.add(letter(2, cause=Cause.REJECTED))
    letters.add(letter(3))
    letters.add(letter(1, "shipping"))
    assert [each.message.seq for each in letters.find(**search)] == found
    assert len(letters) == 4


# Replaying


def test_a_replayed_message_goes_to_the_one_that_failed_as_it_was(
    letters: DeadLetters, subscribers: Subscribers
) -> None:
    dead = letter(7, headers={"tenant": "acme"}, priority=75)
    letters.add(dead)
    letters.add(letter(8))
    replayed = letters.replay(dead)
    assert subscribers.got == [("billing", replayed)]
    assert replayed.seq == 7
    assert replayed.attempts == 0
    assert replayed == msgspec.structs.replace(dead.message, attempts=0)
    assert kept(letters) == [8]


def test_a_message_may_be_edited_before_it_is_replayed(letters: DeadLetters, subscribers: Subscribers) -> None:
    dead = letter(7)
    letters.add(dead)
    replayed = letters.replay(dead, payload={"n": 70}, priority=99, headers={"edited": "yes"})
    assert subscribers.got == [("billing", replayed)]
    assert (replayed.seq, replayed.attempts, replayed.id) == (7, 0, "m7")
    assert replayed.decode() == {"n": 70}
    assert replayed.priority == 99
    assert replayed.headers == {"edited": "yes"}
    assert dead.message.decode() == {"n": 7}


def test_an_edited_message_keeps_its_place_whatever_is_asked(letters: DeadLetters) -> None:
    dead = letter(7)
    letters.add(dead)
    assert letters.replay(dead, seq=1000).seq == 7


def test_a_compressed_message_may_be_edited_too(letters: DeadLetters) -> None:
    plain, content_type = codec.encode({"n": 7})
    dead = letter(7, payload=codec.Zlib().apply(plain), content_type=content_type, encoding="zlib")
    letters.add(dead)
    assert letters.replay(dead, payload={"n": 70}).decode() == {"n": 70}


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"priority": 101}, InvalidPriority), ({"topic": "a b"}, InvalidTopic), ({"attempts": -1}, InvalidMessage)],
)
def test_an_edit_that_makes_no_sense_leaves_everything_as_it_is(
    letters: DeadLetters, subscribers: Subscribers, changes: dict[str, Any], error: type[Exception]
) -> None:
    dead = letter(7)
    letters.add(dead)
    with pytest.raises(error):
        letters.replay(dead, **changes)
    assert list(letters) == [dead]
    assert subscribers.got == []


def test_a_letter_stays_when_its_subscriber_is_gone() -> None:
    letters = DeadLetters(10, Subscribers("shipping").redeliver)
    dead = letter(7)
    letters.add(dead)
    with pytest.raises(UnknownHandler, match="'billing'; there are: shipping"):
        letters.replay(dead)
    assert list(letters) == [dead]


def test_a_letter_is_replayed_once(letters: DeadLetters, subscribers: Subscribers) -> None:
    dead = letter(7)
    letters.add(dead)
    letters.replay(dead)
    with pytest.raises(UsageError):
        letters.replay(dead)
    assert len(subscribers.got) == 1


def test_replaying_twice_does_not_blame_a_subscriber_that_is_there(letters: DeadLetters) -> None:
    dead = letter(7)
    letters.add(dead)
    letters.add(letter(8))
    letters.replay(dead)
    with pytest.raises(UsageError) as caught:
        letters.replay(dead)
    assert "no handler named 'billing'" not in str(caught.value)


def test_a_letter_that_was_evicted_cannot_be_replayed(letters: DeadLetters, subscribers: Subscribers) -> None:
    dead = letter(1)
    letters.add(dead)
    for seq in range(2, 12):
        letters.add(letter(seq))
    with pytest.raises(UsageError):
        letters.replay(dead)
    assert subscribers.got == []


def test_a_message_that_dies_again_while_it_is_replayed_is_kept() -> None:
    def fail_at_once(name: str, message: Message, origin: object) -> None:
        letters.add(again)

    letters = DeadLetters(10, fail_at_once)
    dead, again = letter(7), letter(7, cause=Cause.REJECTED)
    letters.add(dead)
    letters.replay(dead)
    assert list(letters) == [again]


# Removing


def test_a_letter_can_be_removed(letters: DeadLetters) -> None:
    dead = letter(1)
    letters.add(dead)
    letters.add(letter(2))
    assert letters.remove(dead)
    assert not letters.remove(dead)
    assert not letters.remove(letter(1, "nobody"))
    assert kept(letters) == [2]


def test_all_letters_can_be_cleared(letters: DeadLetters) -> None:
    for seq in range(1, 4):
        letters.add(letter(seq))
    assert letters.clear() == 3
    assert letters.clear() == 0
    assert len(letters) == 0
    assert letters.total == 3


steps = st.lists(st.tuples(st.sampled_from(["add", "add", "replay", "remove"]), st.integers(1, 8)), max_size=40)


@given(steps, st.integers(1, 5))
@settings(max_examples=100)
def test_letters_agree_with_a_plain_list(steps: list[tuple[str, int]], max_letters: int) -> None:
    subscribers = Subscribers()
    letters = DeadLetters(max_letters, subscribers.redeliver)
    expected: list[int] = []
    evicted = replayed = 0
    for action, seq in steps:
        present = seq in expected
        match action:
            case "add":
                letters.add(letter(seq))
                expected = [*(each for each in expected if each != seq), seq]
                evicted += max(0, len(expected) - max_letters)
                expected = expected[-max_letters:]
            case "remove":
                assert letters.remove(letter(seq)) is present
                expected = [each for each in expected if each != seq]
            case "replay" if present:
                letters.replay(letter(seq))
                replayed += 1
                expected.remove(seq)
        assert kept(letters) == expected
        assert letters.evicted == evicted
        assert len(subscribers.got) == replayed


# Describing


def test_an_error_is_described_by_its_type_and_its_words() -> None:
    assert describe(ValueError("no")) == "ValueError: no"
    assert describe(KeyError("a")) == "KeyError: 'a'"


class Mute(Exception):
    """An error whose str() raises, as in code that formats its own fields."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_that_cannot_speak_is_described_too() -> None:
    assert "Mute" in describe(Mute())
    assert "Mute" in traceback_of(Mute())


def fail() -> None:
    raise ValueError("deep down")


def test_a_traceback_shows_where_it_happened_and_why() -> None:
    try:
        try:
            fail()
        except ValueError as cause:
            raise KeyError("outer") from cause
    except KeyError as error:
        text = traceback_of(error)
    assert "in fail" in text
    assert "ValueError: deep down" in text
    assert text.endswith("KeyError: 'outer'\n")


def test_a_letter_is_a_value() -> None:
    dead = letter(1)
    assert dead == letter(1)
    for name in DeadLetter.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(dead, name, getattr(dead, name))
