"""Leases compared with a plain table: which are due, in which order, and when the next check is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.delivery.leases import Leases
from trunkline.message import Message

LEASE_S = 10


def message(seq: int) -> Message:
    return Message(topic="a", payload=b"", content_type="x", seq=seq)


def test_nothing_is_held_at_first() -> None:
    leases = Leases(LEASE_S)
    assert len(leases) == 0
    assert 1 not in leases
    assert leases.due(1e9) == []
    assert leases.next_end() is None
    assert leases.messages() == []


def test_a_granted_message_is_held_until_it_is_ended() -> None:
    leases = Leases(LEASE_S)
    held = message(1)
    leases.grant(held, 0)
    assert 1 in leases
    assert len(leases) == 1
    assert leases.messages() == [held]
    assert leases.end(1) is held
    assert 1 not in leases
    assert leases.end(1) is None
    assert len(leases) == 0


def test_a_lease_ends_when_its_time_has_passed_and_not_before() -> None:
    leases = Leases(LEASE_S)
    held = message(1)
    leases.grant(held, 5)
    assert leases.next_end() == 15
    assert leases.due(14.999) == []
    assert leases.due(15) == [held]


def test_what_is_due_stays_held_until_someone_decides() -> None:
    leases = Leases(LEASE_S)
    leases.grant(message(1), 0)
    assert leases.due(10) == leases.due(11) == [message(1)]
    assert 1 in leases
    assert leases.renew(1, 11)
    assert leases.due(11) == []
    assert leases.next_end() == 21


def test_renewing_what_is_not_held_says_so_and_holds_nothing() -> None:
    leases = Leases(LEASE_S)
    leases.grant(message(1), 0)
    leases.end(1)
    assert not leases.renew(1, 1)
    assert not leases.renew(2, 1)
    assert len(leases) == 0
    assert leases.next_end() is None


def test_those_held_longest_are_due_first_and_a_renewed_one_goes_behind() -> None:
    leases = Leases(LEASE_S)
    for seq, now in ((3, 0), (1, 1), (2, 2)):
        leases.grant(message(seq), now)
    leases.renew(3, 4)
    assert [held.seq for held in leases.due(100)] == [1, 2, 3]
    assert leases.next_end() == 11


def test_a_message_granted_again_gets_a_full_lease_and_its_place_behind_the_others() -> None:
    leases = Leases(LEASE_S)
    leases.grant(message(1), 0)
    leases.grant(message(2), 1)
    leases.grant(message(1), 5)
    assert leases.next_end() == 11
    assert [held.seq for held in leases.due(12)] == [2]
    assert [held.seq for held in leases.due(15)] == [2, 1]
    assert len(leases) == 2


steps = st.lists(
    st.tuples(st.sampled_from(["grant", "renew", "end"]), st.integers(1, 6), st.integers(0, 8)), max_size=40
)


@given(steps)
@settings(max_examples=100)
def test_leases_agree_with_a_plain_table(steps: list[tuple[str, int, int]]) -> None:
    leases = Leases(LEASE_S)
    ends: dict[int, tuple[int, int]] = {}
    now = 0
    for turn, (action, seq, passed) in enumerate(steps):
        now += passed
        match action:
            case "grant":
                leases.grant(message(seq), now)
                ends[seq] = (now + LEASE_S, turn)
            case "renew":
                assert leases.renew(seq, now) is (seq in ends)
                if seq in ends:
                    ends[seq] = (now + LEASE_S, turn)
            case "end":
                ended = leases.end(seq)
                assert (None if ended is None else ended.seq) == (seq if ends.pop(seq, None) else None)
        order = sorted(ends, key=ends.__getitem__)
        assert len(leases) == len(ends)
        assert [held.seq for held in leases.messages()] == order
        assert leases.next_end() == min((end for end, _ in ends.values()), default=None)
        for then in (now, now + LEASE_S // 2, now + LEASE_S):
            assert [held.seq for held in leases.due(then)] == [seq for seq in order if ends[seq][0] <= then]
