"""Requests and orphans: answered, late, early, without an id; claimed in order; bounded; nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.delivery.requests import Answer, Orphan, OrphanBox, Pending, Requests, Why
from trunkline.errors import DuplicateName
from trunkline.message import Message, MessageType
from trunkline.settings import Orphans


def answer(
    request_id: str | None, payload: object = "answer", sender: str = "server", topic: str = "_reply"
) -> Message:
    type = MessageType.ERROR if request_id is None else MessageType.RESPONSE
    return Message(type=type, request_id=request_id, payload=payload, sender=sender, topic=topic)


class Caller:
    """A requester: collects answers, and is complete after `wants` of them (0: never)."""

    def __init__(self, wants: int = 1) -> None:
        self.wants = wants
        self.got: list[Any] = []

    def __call__(self, message: Message) -> bool:
        self.got.append(message.decode())
        return len(self.got) == self.wants


def unexpected(error: Exception) -> None:
    raise AssertionError("the table tells nobody of failures by itself") from error


def pending(request_id: str, answer: Answer, at_s: float = 0.0, timeout_s: float = 30.0) -> Pending:
    return Pending(request_id, "client", "pricing", at_s, timeout_s, answer, unexpected)


def requests(max_messages: int = 1000, max_age_s: float = 60.0) -> Requests:
    return Requests(Orphans(max_messages=max_messages, max_age_s=max_age_s))


def receive(table: Requests, message: Message, now_s: float) -> bool:
    """The steps of a bus for an answer."""
    if table.answer(message):
        return True
    table.keep_orphan(message, now_s)
    return False


# Answers to open requests


def test_an_answer_finds_its_request() -> None:
    table = requests()
    one, other = Caller(), Caller()
    table.open(pending("r1", one))
    table.open(pending("r2", other))
    assert receive(table, answer("r2", "yes"), 1)
    assert (one.got, other.got) == ([], ["yes"])
    assert "r1" in table
    assert "r2" not in table
    assert len(table) == 1
    assert len(table.orphans) == 0


def test_the_table_says_what_is_open() -> None:
    table = requests()
    caller = Caller()
    table.open(pending("r1", caller, at_s=5))
    (entry,) = table
    assert (entry.request_id, entry.sender, entry.topic) == ("r1", "client", "pricing")
    assert (entry.sent_at_s, entry.timeout_s, entry.deadline_s) == (5, 30, 35)
    assert entry.answer is caller


def test_a_request_that_wants_more_stays_open() -> None:
    table = requests()
    caller = Caller(wants=3)
    table.open(pending("r1", caller))
    for number in range(3):
        assert "r1" in table
        assert receive(table, answer("r1", number), number)
    assert caller.got == [0, 1, 2]
    assert len(table) == 0


def test_an_id_that_is_open_cannot_be_opened_again() -> None:
    table = requests()
    caller = Caller()
    table.open(pending("r1", caller))
    with pytest.raises(DuplicateName, match="'r1'"):
        table.open(pending("r1", Caller()))
    assert table.answer(answer("r1", "yes"))
    assert caller.got == ["yes"]


def test_asking_for_a_request_keeps_no_orphan() -> None:
    table = requests()
    for message in (answer("r1"), answer(None)):
        assert not table.answer(message)
    assert len(table.orphans) == 0


def test_of_two_responses_the_second_is_late() -> None:
    table = requests()
    caller = Caller()
    table.open(pending("r1", caller))
    assert receive(table, answer("r1", "first"), 1)
    assert not receive(table, answer("r1", "second"), 2)
    assert caller.got == ["first"]
    (orphan,) = table.orphans
    assert (orphan.message.decode(), orphan.why, orphan.at_s) == ("second", Why.LATE, 2)


def test_an_answer_to_a_request_that_was_given_up_is_late() -> None:
    table = requests()
    caller = Caller()
    table.open(pending("r1", caller))
    table.close("r1")
    assert not receive(table, answer("r1"), 1)
    assert caller.got == []
    assert [orphan.why for orphan in table.orphans] == [Why.LATE]


def test_an_answer_to_nothing_we_know_is_early() -> None:
    table = requests()
    assert not receive(table, answer("r1"), 1)
    assert [orphan.why for orphan in table.orphans] == [Why.EARLY]


def test_an_answer_without_an_id_is_kept_and_says_so() -> None:
    table = requests()
    table.open(pending("r1", Caller()))
    assert not receive(table, answer(None, "lost"), 1)
    (orphan,) = table.orphans
    assert orphan.why is Why.NO_REQUEST_ID
    assert orphan.message.decode() == "lost"
    assert "r1" in table


# Early answers


def test_early_answers_are_claimed_in_order_when_the_request_comes() -> None:
    table = requests()
    for number in range(3):
        receive(table, answer("r1", number), number)
        receive(table, answer("other", -number), number)
    caller = Caller(wants=0)
    table.open(pending("r1", caller, at_s=3))
    assert caller.got == [0, 1, 2]
    assert [orphan.message.request_id for orphan in table.orphans] == ["other"] * 3
    assert table.orphans.claimed == 3
    receive(table, answer("r1", 3), 4)
    assert caller.got == [0, 1, 2, 3]


def test_an_early_answer_completes_a_request_at_once() -> None:
    table = requests()
    receive(table, answer("r1", "early"), 0)
    caller = Caller()
    table.open(pending("r1", caller, at_s=1))
    assert caller.got == ["early"]
    assert "r1" not in table
    assert len(table) == 0
    assert len(table.orphans) == 0


def test_a_second_early_answer_is_late_once_the_first_was_enough() -> None:
    table = requests()
    receive(table, answer("r1", "first"), 0)
    receive(table, answer("r1", "second"), 0)
    caller = Caller()
    table.open(pending("r1", caller, at_s=1))
    assert caller.got == ["first"]
    (orphan,) = table.orphans
    assert (orphan.message.decode(), orphan.why) == ("second", Why.LATE)
    assert len(table) == 0
    assert (table.orphans.total, table.orphans.claimed) == (2, 1)


def test_what_a_request_did_not_want_keeps_its_age_and_its_place() -> None:
    table = requests(max_age_s=60)
    receive(table, answer("r1", "first"), 0)
    receive(table, answer("r1", "second"), 1)
    receive(table, answer("r2", "other"), 50)
    table.open(pending("r1", Caller(), at_s=55))
    assert [orphan.message.decode() for orphan in table.orphans] == ["second", "other"]
    table.orphans.expire(62)
    assert [orphan.message.decode() for orphan in table.orphans] == ["other"]


def test_a_request_that_is_opened_again_gets_what_came_too_late_before() -> None:
    table = requests()
    table.open(pending("r1", Caller()))
    table.close("r1")
    receive(table, answer("r1", "late"), 1)
    again = Caller()
    table.open(pending("r1", again, at_s=2))
    assert again.got == ["late"]


def test_an_early_answer_that_is_too_old_is_not_claimed() -> None:
    table = requests(max_age_s=60)
    receive(table, answer("r1", "stale"), 0)
    receive(table, answer("r1", "fresh"), 30)
    caller = Caller(wants=0)
    table.open(pending("r1", caller, at_s=61))
    assert caller.got == ["fresh"]
    assert table.orphans.aged == 1


# The end of a request


def test_the_table_is_empty_after_closing() -> None:
    table = requests()
    for number in range(100):
        table.open(pending(str(number), Caller()))
    for number in range(100):
        table.close(str(number))
    assert len(table) == 0
    assert list(table) == []


def test_closing_twice_or_what_never_was_is_fine() -> None:
    table = requests()
    table.open(pending("r1", Caller()))
    table.close("r1")
    table.close("r1")
    table.close("never")
    assert len(table) == 0
    receive(table, answer("never"), 0)
    assert [orphan.why for orphan in table.orphans] == [Why.EARLY]


def test_what_ended_is_remembered_within_bounds() -> None:
    table = requests(max_messages=10)
    for number in range(1000):
        table.open(pending(str(number), Caller()))
        table.close(str(number))
        assert len(table._ended) <= 10
    receive(table, answer("999"), 0)
    receive(table, answer("990"), 0)
    assert [orphan.why for orphan in table.orphans] == [Why.LATE, Why.LATE]


def test_what_ended_again_is_remembered_as_what_ended_last() -> None:
    table = requests(max_messages=2)
    for request_id in ("a", "b", "a", "c"):
        table.open(pending(request_id, Caller()))
        table.close(request_id)
    receive(table, answer("a"), 0)
    receive(table, answer("b"), 0)
    assert [orphan.why for orphan in table.orphans] == [Why.LATE, Why.EARLY]


def test_a_caller_may_open_and_close_requests_while_it_is_answered() -> None:
    table = requests()
    receive(table, answer("r2", "early"), 0)
    inner = Caller()

    def outer(message: Message) -> bool:
        table.open(pending("r2", inner, at_s=1))
        table.close("r1")
        return True

    table.open(pending("r1", outer))
    assert receive(table, answer("r1"), 1)
    assert inner.got == ["early"]
    assert len(table) == 0
    assert len(table.orphans) == 0


# Time


def test_what_is_due_is_taken_out_and_said_once() -> None:
    table = requests()
    for number in range(3):
        table.open(pending(f"r{number}", Caller(), at_s=number, timeout_s=10))
    assert table.next_deadline() == 10
    assert table.due(9.999) == []
    assert [entry.request_id for entry in table.due(11)] == ["r0", "r1"]
    assert table.due(11) == []
    assert table.next_deadline() == 12
    assert [entry.request_id for entry in table] == ["r2"]
    assert not receive(table, answer("r0"), 11)
    assert [orphan.why for orphan in table.orphans] == [Why.LATE]


def test_what_waits_briefly_is_due_before_what_waits_long() -> None:
    table = requests()
    table.open(pending("long", Caller(), at_s=0, timeout_s=100))
    table.open(pending("brief", Caller(), at_s=5, timeout_s=1))
    assert table.next_deadline() == 6
    assert [entry.request_id for entry in table.due(50)] == ["brief"]
    assert table.next_deadline() == 100


def test_nothing_open_is_never_due() -> None:
    table = requests()
    assert table.next_deadline() is None
    table.open(pending("r1", Caller()))
    table.close("r1")
    assert table.next_deadline() is None
    assert table.due(1e9) == []


def test_requests_that_ended_leave_nothing_behind_whatever_their_timeouts() -> None:
    table = requests()
    for number in range(1000):
        table.open(pending(str(number), Caller(), timeout_s=30 + number / 1000))
        assert table.answer(answer(str(number)))
    # A few may stay for the next request of the same kind; one for each request may not.
    assert len(table._by_timeout) <= 100


times = st.lists(
    st.tuples(st.sampled_from(["open", "open", "close", "due"]), st.integers(0, 9), st.integers(0, 5)), max_size=50
)


@given(times)
@settings(max_examples=150)
def test_due_agrees_with_a_plain_table(steps: list[tuple[str, int, int]]) -> None:
    table = requests()
    deadlines: dict[str, int] = {}
    now = 0
    for action, number, passed in steps:
        now += passed
        request_id = str(number)
        match action:
            case "open" if request_id not in table:
                timeout_s = (5, 10, 20)[number % 3]
                table.open(pending(request_id, Caller(), at_s=now, timeout_s=timeout_s))
                deadlines[request_id] = now + timeout_s
            case "close":
                table.close(request_id)
                deadlines.pop(request_id, None)
            case "due":
                due = {id for id, deadline in deadlines.items() if deadline <= now}
                assert {entry.request_id for entry in table.due(now)} == due
                deadlines = {id: deadline for id, deadline in deadlines.items() if id not in due}
        assert table.next_deadline() == min(deadlines.values(), default=None)
        assert {entry.request_id for entry in table} == set(deadlines)


# The box of orphans


def test_a_thousand_orphans_are_kept_for_a_minute_by_default() -> None:
    table = Requests(Orphans())
    for number in range(1500):
        receive(table, answer("r", number), number / 100)
    assert len(table.orphans) == 1000
    assert table.orphans.evicted == 500
    assert next(iter(table.orphans)).message.decode() == 500
    assert table.orphans.expire(65) == 0
    assert table.orphans.expire(65.005) == 1
    assert table.orphans.expire(75) == 999
    assert len(table.orphans) == 0


def test_what_is_too_old_goes_when_something_new_comes() -> None:
    box = OrphanBox(Orphans(max_age_s=60))
    box.add(Orphan(answer("r1"), Why.EARLY, 0))
    box.add(Orphan(answer("r2"), Why.EARLY, 60))
    assert len(box) == 2
    box.add(Orphan(answer("r3"), Why.EARLY, 60.5))
    assert [orphan.message.request_id for orphan in box] == ["r2", "r3"]
    assert (box.total, box.aged, box.evicted) == (3, 1, 0)


def test_expiry_says_how_many_went() -> None:
    box = OrphanBox(Orphans(max_age_s=10))
    for at_s in range(5):
        box.add(Orphan(answer("r"), Why.EARLY, at_s))
    assert box.expire(10) == 0
    assert box.expire(12) == 2
    assert box.expire(100) == 3
    assert box.aged == 5
    assert len(box) == 0


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"request_id": "r1"}, [0, 1]),
        ({"sender": "s2"}, [1, 3]),
        ({"topic": "t2"}, [2]),
        ({"request_id": "r1", "sender": "s2"}, [1]),
        ({"request_id": "nobody"}, []),
    ],
)
def test_orphans_can_be_found(search: dict[str, str], found: list[int]) -> None:
    box = OrphanBox(Orphans())
    for number, (request_id, sender, topic) in enumerate(
        [("r1", "s1", "t1"), ("r1", "s2", "t1"), ("r2", "s1", "t2"), ("r2", "s2", "t1")]
    ):
        box.add(Orphan(answer(request_id, number, sender, topic), Why.EARLY, 0))
    assert [orphan.message.decode() for orphan in box.find(**search)] == found
    assert len(box) == 4


def test_claiming_nothing_changes_nothing() -> None:
    box = OrphanBox(Orphans())
    given: list[Message] = []

    def give(message: Message) -> bool:
        given.append(message)
        return True

    for _ in range(2):
        box.claim("r1", give, lambda _: Why.LATE)
        box.add(Orphan(answer("r2"), Why.EARLY, 0))
    assert not given
    assert (len(box), box.claimed) == (2, 0)


# Any course of events


steps = st.lists(
    st.tuples(st.sampled_from(["open", "answer", "answer", "close"]), st.sampled_from("abc"), st.integers(0, 5)),
    max_size=50,
)


@given(steps, st.integers(1, 4), st.integers(1, 2))
@settings(max_examples=100)
def test_every_answer_is_somewhere_exactly_once(
    steps: list[tuple[str, str, int]], max_messages: int, wants: int
) -> None:
    table = requests(max_messages=max_messages, max_age_s=20)
    callers: list[Caller] = []
    now = 0
    answers = 0
    for action, request_id, passed in steps:
        now += passed
        match action:
            case "open":
                if request_id not in table:
                    callers.append(Caller(wants))
                    table.open(pending(request_id, callers[-1], at_s=now))
            case "answer":
                receive(table, answer(request_id, answers), now)
                answers += 1
            case "close":
                table.close(request_id)
        box = table.orphans
        box.expire(now)
        assert len(box) <= max_messages
        assert all(now - orphan.at_s <= 20 for orphan in box)
        assert all(orphan.message.request_id not in [entry.request_id for entry in table] for orphan in box)
        got = [number for caller in callers for number in caller.got]
        kept = [orphan.message.decode() for orphan in box]
        assert kept == sorted(kept)
        assert len({*got, *kept}) == len(got) + len(kept)
        assert len(got) + len(kept) + box.evicted + box.aged == answers
        for caller in callers:
            assert caller.got == sorted(caller.got)
            assert len(caller.got) <= wants
    for request_id in "abc":
        table.close(request_id)
    assert len(table) == 0
