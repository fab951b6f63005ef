"""The record of fates: merged ranges, single rows that take precedence, correct answers after forgetting; the books."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trunkline.delivery import books
from trunkline.delivery.books import MAX_ROWS, MERGE_NS, Books
from trunkline.delivery.fates import Account, Fate, Outcome

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND

ENDED = [Fate.FILTERED, Fate.EXPIRED, Fate.DROPPED, Fate.DEAD]


def known(record: Books, seq: int) -> Fate | None:
    fate = record.fate_of(seq)
    return None if fate is None else fate[0]


# Ranges


def test_nothing_is_known_at_first() -> None:
    record = Books()
    assert record.fate_of(1) is None
    assert not record.spans


def test_a_delivered_batch_is_one_range() -> None:
    record = Books()
    record.deliver(11, 20, 10, NOW)
    assert known(record, 10) is None
    assert record.fate_of(11) == record.fate_of(20) == (Fate.DELIVERED, "", NOW)
    assert known(record, 21) is None
    (span,) = record.spans
    assert (span.first, span.last, record.delivered, span.since_ns, span.at_ns) == (11, 20, 10, NOW, NOW)


def test_batches_of_one_second_share_a_range() -> None:
    record = Books()
    for number in range(1000):
        record.deliver(number * 10 + 1, number * 10 + 10, 10, NOW + number * SECOND // 1000)
    (span,) = record.spans
    assert (span.first, span.last, record.delivered) == (1, 10_000, 10_000)
    assert (span.since_ns, span.at_ns) == (NOW, NOW + 999 * SECOND // 1000)


def test_a_range_lasts_a_second_from_its_beginning_and_not_from_its_last_batch() -> None:
    record = Books()
    for number in range(4):
        record.deliver(number + 1, number + 1, 1, NOW + number * SECOND // 2)
    assert [(span.first, span.last) for span in record.spans] == [(1, 2), (3, 4)]
    assert MERGE_NS == SECOND


def test_batches_out_of_order_are_merged_too() -> None:
    record = Books()
    record.deliver(5, 8, 4, NOW)
    record.deliver(1, 2, 2, NOW)
    (span,) = record.spans
    assert (span.first, span.last, record.delivered) == (1, 8, 6)


def test_a_clock_that_went_back_begins_a_new_range() -> None:
    record = Books()
    record.deliver(1, 1, 1, NOW)
    record.deliver(2, 2, 1, NOW - 1)
    assert len(record.spans) == 2
    assert known(record, 1) is Fate.DELIVERED
    assert known(record, 2) is Fate.DELIVERED


def test_what_lies_between_two_ranges_is_not_claimed() -> None:
    record = Books()
    record.deliver(1, 10, 10, NOW)
    record.deliver(21, 30, 10, NOW + SECOND)
    assert known(record, 15) is None
    assert [known(record, seq) for seq in (10, 21)] == [Fate.DELIVERED, Fate.DELIVERED]


def test_a_batch_that_is_being_handed_out_is_delivered_already() -> None:
    record = Books()
    record.running.append(5)
    assert known(record, 4) is None
    assert record.fate_of(5) == (Fate.DELIVERED, "", 0)
    record.running.remove(5)
    assert known(record, 5) is None


def test_one_delivered_message_is_a_range_of_one() -> None:
    record = Books()
    record.deliver_one(7, NOW)
    assert record.fate_of(7) == (Fate.DELIVERED, "", NOW)
    (span,) = record.spans
    assert (span.first, span.last, record.delivered) == (7, 7, 1)


# Rows


@pytest.mark.parametrize("fate", ENDED)
def test_a_row_wins_over_the_range_around_it(fate: Fate) -> None:
    record = Books()
    record.end(5, 5, fate, "because", NOW)
    record.deliver(1, 10, 9, NOW)
    assert record.fate_of(5) == (fate, "because", NOW)
    assert known(record, 4) is Fate.DELIVERED
    assert known(record, 6) is Fate.DELIVERED


def test_the_last_row_of_a_message_counts() -> None:
    record = Books()
    record.end(5, 5, Fate.DEAD, "failed", NOW)
    record.end(5, 5, Fate.EXPIRED, "too late", NOW + 1)
    assert record.fate_of(5) == (Fate.EXPIRED, "too late", NOW + 1)


def test_a_dead_message_that_was_delivered_after_all_is_delivered() -> None:
    record = Books()
    record.end(5, 5, Fate.DEAD, "failed", NOW)
    record.deliver_one(5, NOW + 1)
    assert record.fate_of(5) == (Fate.DELIVERED, "", NOW + 1)


def test_an_exact_record_claims_only_what_it_has_a_row_for() -> None:
    record = Books()
    record.exact = True
    record.deliver_one(1, NOW)
    record.deliver_one(3, NOW)
    record.end(4, 4, Fate.DEAD, "failed", NOW)
    assert [known(record, seq) for seq in range(1, 6)] == [Fate.DELIVERED, None, Fate.DELIVERED, Fate.DEAD, None]
    assert not record.spans


# Forgetting


def test_rows_are_bounded_and_what_was_forgotten_is_not_called_delivered() -> None:
    record = Books()
    extra = 10
    for seq in range(1, MAX_ROWS + extra + 1):
        record.end(seq * 2, seq * 2, Fate.DROPPED, "full", NOW)
    record.deliver(1, 2 * (MAX_ROWS + extra), MAX_ROWS + extra, NOW)
    assert len(record.rows) == MAX_ROWS
    # Even numbers were dropped: the first ten are forgotten, and so is all that lies among them.
    assert [known(record, seq) for seq in range(1, 2 * extra + 1)] == [None] * 2 * extra
    assert known(record, 2 * extra + 1) is Fate.DELIVERED
    assert known(record, 2 * extra + 2) is Fate.DROPPED
    assert known(record, 2 * (MAX_ROWS + extra)) is Fate.DROPPED


def test_rows_forgotten_out_of_order_are_not_called_delivered_either() -> None:
    record = Books()
    late = [9, 3, 6]
    for seq in [*late, *range(101, 2 * MAX_ROWS + 101, 2)]:
        record.end(seq, seq, Fate.DROPPED, "full", NOW)
    record.deliver(1, 20, 17, NOW)
    assert [known(record, seq) for seq in range(1, 10)] == [None] * 9
    assert known(record, 10) is Fate.DELIVERED


def test_ranges_are_bounded_and_what_was_forgotten_is_unknown() -> None:
    record = Books()
    for number in range(MAX_ROWS + 10):
        record.deliver(number + 1, number + 1, 1, NOW + number * SECOND)
    assert len(record.spans) == MAX_ROWS
    assert known(record, 10) is None
    assert known(record, 11) is Fate.DELIVERED
    assert known(record, MAX_ROWS + 10) is Fate.DELIVERED


def test_exact_rows_are_bounded_too() -> None:
    record = Books()
    record.exact = True
    for seq in range(1, MAX_ROWS + 11):
        record.deliver_one(2 * seq, NOW)
    assert len(record.rows) == MAX_ROWS
    assert known(record, 20) is None
    assert known(record, 22) is Fate.DELIVERED


@pytest.mark.parametrize("fate", [Fate.DELIVERED, *ENDED])
def test_rows_that_follow_each_other_and_are_alike_are_one(fate: Fate) -> None:
    record = Books()
    record.exact = True
    for seq in range(1, 1001):
        record.end(seq, seq, fate, "", NOW) if fate is not Fate.DELIVERED else record.deliver_one(seq, NOW)
    assert len(record.rows) == 1
    assert {known(record, seq) for seq in range(1, 1001)} == {fate}
    record.end(500, 500, Fate.DEAD, "other", NOW)
    assert [known(record, seq) for seq in (499, 500, 501)] == [fate, Fate.DEAD, fate]


batches = st.lists(
    st.tuples(st.sampled_from([Fate.DELIVERED, Fate.DELIVERED, *ENDED]), st.integers(1, 4), st.integers(0, 2 * SECOND)),
    max_size=30,
)


@given(batches, st.integers(1, 40), st.sets(st.integers(1, 60), max_size=5), st.booleans())
@example([(Fate.DELIVERED, 4, 0), (Fate.DEAD, 3, 0)], 1, {6}, False)
@settings(max_examples=100)
def test_a_record_tells_the_truth_or_nothing(
    batches: list[tuple[Fate, int, int]], max_rows: int, replayed: set[int], exact: bool
) -> None:
    truth: dict[int, Fate] = {}
    now = NOW
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(books, "MAX_ROWS", max_rows)
        record = Books()
        record.exact = exact
        for fate, count, passed in batches:
            now += passed
            first = len(truth) + 1
            numbers = range(first, first + count)
            truth.update(dict.fromkeys(numbers, fate))
            if fate is not Fate.DELIVERED:
                for seq in numbers:
                    record.end(seq, seq, fate, "why", now)
            elif exact:
                for seq in numbers:
                    record.deliver_one(seq, now)
            else:
                record.deliver(first, numbers[-1], count, now)
        for seq in replayed:
            if truth.get(seq) is Fate.DEAD:
                record.deliver_one(seq, now)
                truth[seq] = Fate.DELIVERED
        assert len(record.rows) <= max_rows
        assert len(record.spans) <= max_rows
        for seq in range(len(truth) + 5):
            assert known(record, seq) in (truth.get(seq), None)
        if max_rows >= len(truth):
            assert {seq: known(record, seq) for seq in truth} == truth


# The books


NAMES = ["delivered", "filtered", "expired", "dropped", "dead", "in_flight"]
counts = st.builds(Account, *(st.integers(0, 1000) for _ in range(7)))


def test_an_empty_account_is_balanced() -> None:
    assert Account().balanced
    assert Account() == Account(0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_fate_counts_once(name: str) -> None:
    assert Account(**{"accepted": 3, name: 3}).balanced
    assert not Account(**{"accepted": 3, name: 2}).balanced
    assert not Account(**{"accepted": 2, name: 3}).balanced


@given(counts)
@settings(max_examples=100)
def test_balanced_is_the_identity_of_the_design(account: Account) -> None:
    settled = account.delivered + account.filtered + account.expired + account.dropped + account.dead
    assert account.balanced is (account.accepted == settled + account.in_flight)


@given(counts, counts)
@settings(max_examples=100)
def test_accounts_add_up_field_by_field(one: Account, other: Account) -> None:
    total = one + other
    for name in Account.__struct_fields__:
        assert getattr(total, name) == getattr(one, name) + getattr(other, name)
    assert total == other + one
    assert one + Account() == one
    if one.balanced and other.balanced:
        assert total.balanced


def test_many_accounts_are_summed() -> None:
    accounts = [Account(accepted=n, delivered=n) for n in range(5)]
    assert sum(accounts, Account()) == Account(accepted=10, delivered=10)


def test_an_outcome_and_an_account_are_values() -> None:
    assert Outcome("billing", Fate.DROPPED, "full") == Outcome("billing", Fate.DROPPED, "full", 0)
    for value in (Outcome("billing", Fate.DROPPED), Account()):
        for name in value.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(value, name, getattr(value, name))
