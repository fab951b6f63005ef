"""The cursor of a durable subscription compared with a model of sets: nothing is forgotten, nothing is repeated."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trunkline.journal.cursor import Cursor, pack, unpack


class Bookkeeping(RuleBasedStateMachine):
    """`there` are the messages for this cursor; `done` have a fate, `out` are with subscribers."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor("c", ">", 0)
        self.there: list[int] = []
        self.read = 0
        self.out: set[int] = set()
        self.done: set[int] = set()

    # What happens

    @rule(gap=st.integers(0, 3))
    def store(self, gap: int) -> None:
        self.there.append(max([self.read, *self.there]) + 1 + gap)

    @precondition(lambda self: any(seq > self.read for seq in self.there))
    @rule()
    def offer(self) -> None:
        self.read = min(seq for seq in self.there if seq > self.read)
        self.out.add(self.read)
        self.cursor.offer(self.read)

    @rule(by=st.integers(0, 3))
    def skip(self, by: int) -> None:
        beyond = [seq for seq in self.there if seq > self.read]
        upto = min([self.read + by, *(seq - 1 for seq in beyond)])
        self.read = max(self.read, upto)
        self.cursor.skip_to(upto)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.out)))
        self.out.discard(seq)
        self.done.add(seq)
        self.cursor.changed = False
        assert self.cursor.settle(seq)
        assert self.cursor.changed

    @rule()
    def settle_what_is_not_out(self) -> None:
        for seq in {0, max([self.read, *self.there]) + 1, *self.there} - self.out:
            self.cursor.changed = False
            assert not self.cursor.settle(seq)
            assert not self.cursor.changed

    @precondition(lambda self: self.done or self.out)
    @rule(data=st.data())
    def give_again(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.done | self.out)))
        self.cursor.changed = False
        assert self.cursor.give_again(seq) == self.cursor.changed == (seq in self.done)
        self.done.discard(seq)
        self.out.add(seq)

    @precondition(lambda self: any(seq > self.read for seq in self.there))
    @rule(data=st.data())
    def give_again_what_was_not_given(self, data: st.DataObject) -> None:
        """It failed before a restart, and earlier messages have no fate yet: it must come in its place."""
        seq = data.draw(st.sampled_from([seq for seq in self.there if seq > self.read]))
        self.cursor.changed = False
        assert not self.cursor.give_again(seq)
        assert not self.cursor.changed

    @rule()
    def remember(self) -> None:
        self.cursor.catch_up()
        if not self.out:
            assert self.cursor.high >= self.read

    @rule(catch_up=st.booleans())
    def restart(self, catch_up: bool) -> None:
        if catch_up:
            self.cursor.catch_up()
        high, pending = self.cursor.high, unpack(pack(self.cursor.pending()))
        assert pending == sorted(set(pending))
        for seq in self.there:
            comes_again = seq > high or seq in pending
            assert comes_again == (seq not in self.done), f"{seq} of {self.there}: high is {high}, pending {pending}"
        self.cursor = Cursor("c", ">", high, pending)
        self.read = high
        self.out = set(pending)

    # What must hold

    @invariant()
    def agrees(self) -> None:
        cursor = self.cursor
        assert cursor.read == self.read
        assert cursor.out == len(self.out)
        assert cursor.low == min([self.read, *(seq - 1 for seq in self.out)])
        assert cursor.pending() == sorted(set(cursor.pending()))
        assert {seq for seq in self.out if seq <= cursor.high} <= set(cursor.pending()) <= self.out
        for seq in (0, max([self.read, *self.there]) + 1, *self.there):
            assert cursor.is_out(seq) == (seq in self.out), seq
        assert all(seq <= cursor.high for seq in self.done)

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def ranges(self, data: st.DataObject) -> None:
        told = data.draw(st.lists(st.sampled_from(sorted(self.done)), unique=True))
        found = self.cursor.ranges(told)
        for first, last, count in found:
            assert not self.out & set(range(first, last + 1)), f"{first} to {last} covers what is out"
            assert count == len([seq for seq in told if first <= seq <= last])
            assert {first, last} <= set(told)
        assert sum(count for _, _, count in found) == len(told)
        assert found == sorted(found)


TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(max_examples=120, stateful_step_count=40)


def test_ranges_join_what_nobody_has_between() -> None:
    cursor = Cursor("c", ">", 0)
    for seq in (2, 4, 5, 8, 9):
        cursor.offer(seq)
    for seq in (2, 4, 8, 9):
        cursor.settle(seq)
    assert cursor.ranges([9, 2, 4, 8]) == [(2, 4, 2), (8, 9, 2)]
    cursor.settle(5)
    # Those around it are written already: each number is in one range.
    assert cursor.ranges([5]) == [(5, 5, 1)]
    assert cursor.ranges([]) == []


def test_a_new_cursor_may_begin_anywhere() -> None:
    cursor = Cursor("c", ">", 0)
    cursor.start_at(41)
    assert (cursor.high, cursor.read, cursor.low, cursor.changed) == (41, 41, 41, True)
    assert cursor.pending() == []


@given(st.lists(st.integers(0, 2**40)))
def test_what_is_pending_is_written_and_read(seqs: list[int]) -> None:
    assert unpack(pack(seqs)) == seqs
