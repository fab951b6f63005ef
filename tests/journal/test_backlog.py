"""The backlog of a durable subscription, without a journal or an event loop, for any order of events.

Everything that matches and is committed is offered, in order, once a run, or said to be lost.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import trunkline as tl
from trunkline.delivery.inbox import Inbox
from trunkline.journal.backlog import MAX_PAUSE_S, Backlog, KeptMessage, LargeMessages, ReadNumbers
from trunkline.journal.cursor import Cursor
from trunkline.journal.members import MAX_LARGE_BYTES, FeederMembers

EVERYTHING = 10**6


class Simulated:
    """A journal as a dictionary, and one subscriber with limited room. It does what the feeder does."""

    def __init__(self) -> None:
        self.stored: dict[int, tl.Message] = {}
        self.committed = 0
        self.room = 0
        self.retries: dict[int, KeptMessage] = {}
        self.settled: set[int] = set()
        self.lost: set[int] = set()
        self.ever: set[int] = set()
        """Everything that matched and was committed."""
        self.open(Cursor("x", "a", 0))

    def open(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.backlog = Backlog(cursor)
        self.held: list[int] = []
        self.failed: set[int] = set()
        """In this run."""
        self.offered: list[int] = []
        """For the first time in this run, in order."""
        counts = self.backlog.recalled(list(self.retries.values()))
        if isinstance(action := self.backlog.next_read(self.room), ReadNumbers):
            self.read_numbers(action)
        for kept in self.backlog.place(counts):
            self.backlog.waiting.append((kept.message, kept.story))
        self.feed()

    # What happens

    def commit(self, matching: list[bool], live: bool) -> None:
        fresh = []
        for fits in matching:
            self.committed += 1
            if fits:
                message = tl.Message(topic="a", seq=self.committed)
                self.stored[message.seq] = message
                self.ever.add(message.seq)
                fresh.append(message)
        if not live:
            # It was paused at that moment.
            self.backlog.behind = True
        for message in fresh if not self.backlog.behind else ():
            if not self.backlog.committed(message.seq):
                continue
            if not self.free:
                self.backlog.behind = True
                break
            self.offer(message)

    def settle(self, at: int) -> None:
        if self.held:
            seq = self.held.pop(at % len(self.held))
            assert self.cursor.settle(seq)
            self.retries.pop(seq, None)
            self.settled.add(seq)
        self.feed()

    def fail(self, at: int) -> None:
        """Its next attempt is far away: it is taken out, and kept."""
        if self.held:
            seq = self.held.pop(at % len(self.held))
            self.failed.add(seq)
            self.retries[seq] = KeptMessage(tl.Message(topic="a", seq=seq), [], 0)

    def remove(self, at: int) -> None:
        """Retention, even of unread messages."""
        if self.stored:
            del self.stored[sorted(self.stored)[at % len(self.stored)]]

    def give_again(self, at: int) -> None:
        if self.settled:
            seq = sorted(self.settled)[at % len(self.settled)]
            self.settled.discard(seq)
            self.backlog.give_again(tl.Message(topic="a", seq=seq), recalled=True)
        self.feed()

    def restart(self) -> None:
        self.cursor.catch_up()
        self.open(Cursor("x", "a", self.cursor.high, self.cursor.pending()))

    def rest(self) -> None:
        """The last subscriber leaves, and another one arrives."""
        self.backlog.forget(())
        self.restart()

    # What the feeder does

    @property
    def free(self) -> int:
        return self.room - len(self.held)

    def offer(self, message: tl.Message) -> None:
        assert not self.offered or message.seq > self.offered[-1]
        self.offered.append(message.seq)
        if (kept := self.backlog.offer(message.seq)) is not None:
            self.backlog.waiting.append((kept.message, kept.story))
            self.offer_waiting()
        else:
            self.held.append(message.seq)

    def offer_waiting(self) -> None:
        while self.backlog.waiting and self.free > 0:
            message, _ = self.backlog.waiting.popleft()
            assert message.seq not in self.held
            self.held.append(message.seq)

    def read_numbers(self, action: ReadNumbers) -> None:
        # One at a time: the rest is left.
        now, left = action.seqs[:1], action.seqs[1:]
        found = [self.stored[seq] for seq in now if seq in self.stored]
        lost = self.backlog.numbers_read(action, found, left)
        self.lost.update(lost)
        assert not set(lost) & self.stored.keys()

    def feed(self) -> None:
        self.offer_waiting()
        backlog = self.backlog
        while backlog.behind and self.free > 0:
            action = backlog.next_read(self.free)
            if isinstance(action, ReadNumbers):
                self.read_numbers(action)
                self.offer_waiting()
                continue
            if action is not None:
                found = [self.stored[seq] for seq in sorted(self.stored) if seq > self.cursor.read][:4]
                backlog.read_on(found, found[-1].seq if found else self.cursor.read, self.committed)
            while backlog.ahead and self.free > 0:
                self.offer(backlog.ahead.popleft())
            if backlog.ahead:
                return
            for kept in backlog.all_offered():
                backlog.waiting.append((kept.message, kept.story))
            self.offer_waiting()
            if backlog.caught_up(self.committed):
                return


index = st.integers(0, 50)
events = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.lists(st.booleans(), min_size=1, max_size=6), st.booleans()),
        st.tuples(st.just("room"), st.integers(0, 8)),
        st.tuples(st.sampled_from(["settle", "settle", "fail", "remove", "give_again"]), index),
        st.tuples(st.sampled_from(["restart", "rest"])),
    ),
    max_size=40,
)


BEGIN = (("room", 8), ("commit", [True, True, True], True))


@settings(max_examples=300, deadline=None)
@given(events)
# Several were out below one that has its fate: they are read before anything new, not all at once.
@example([*BEGIN, ("settle", 2), ("restart",)])
# What failed is read at its place, or was removed from its topic meanwhile.
@example([*BEGIN, ("fail", 0), ("restart",)])
@example([*BEGIN, ("fail", 0), ("remove", 0), ("restart",)])
def test_whatever_happens_everything_is_offered_or_said_to_be_lost(happens: list[tuple[Any, ...]]) -> None:
    simulated = Simulated()
    removed: set[int] = set()
    failed: set[int] = set()
    for name, *values in happens:
        before = set(simulated.stored)
        if name == "room":
            (simulated.room,) = values
            simulated.feed()
        else:
            getattr(simulated, name)(*values)
        failed |= simulated.retries.keys()
        if name == "remove":
            removed |= before - set(simulated.stored)
        assert len(simulated.held) == len(set(simulated.held))
        assert simulated.cursor.low <= simulated.cursor.read <= simulated.committed
    # All the room there is: nothing may be left.
    simulated.room = EVERYTHING
    simulated.feed()
    if simulated.backlog.behind is False:
        assert not simulated.backlog.ahead
        assert not simulated.backlog.waiting
    while simulated.held:
        simulated.settle(0)
    # What failed before has had its next attempt; what failed in this run comes with the next.
    assert simulated.retries.keys() <= simulated.failed
    simulated.restart()
    while simulated.held:
        simulated.settle(0)
    assert simulated.settled | simulated.lost | removed >= simulated.ever
    # Removed while it was not out: no notice, as for all messages that are removed before they are read.
    assert failed <= simulated.settled | simulated.lost
    assert not simulated.retries


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 100), st.sampled_from(["hand", "take"]), st.sampled_from("ab"))
    )
)
def test_the_bytes_of_large_messages_are_those_of_the_messages_held(steps: list[tuple[int, int, str, str]]) -> None:
    large = LargeMessages()
    model: dict[int, tuple[str, int]] = {}
    for seq, size, what, holder in steps:
        if what == "hand":
            large.hand(seq, size, holder)
            model[seq] = holder, size
        else:
            large.take(seq)
            model.pop(seq, None)
        assert bool(large) == bool(model)
        assert all((seq in large) == (seq in model) for seq in range(1, 6))
        for each in "ab":
            assert large.bytes_of(each) == sum(size for whose, size in model.values() if whose == each)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.tuples(st.just("fail"), st.floats(-5, 10_000)), st.tuples(st.just("pass"), st.floats(0, 50))))
)
def test_what_failed_waits_its_pause_and_never_longer_than_an_hour(steps: list[tuple[str, float]]) -> None:
    backlog = Backlog(Cursor("x", "a", 0))
    now_s = 0.0
    due: dict[int, float] = {}
    offered: list[int] = []
    for seq, (what, value) in enumerate(steps, 1):
        if what == "fail":
            backlog.postpone(KeptMessage(tl.Message(topic="a", seq=seq), [], 0), value, now_s)
            due[seq] = now_s + min(value, MAX_PAUSE_S)
        else:
            now_s += max(0.0, value)
            backlog.pass_time(now_s)
        while backlog.waiting:
            message, _ = backlog.waiting.popleft()
            offered.append(message.seq)
            assert due[message.seq] <= now_s
        left = [at_s for seq, at_s in due.items() if seq not in offered]
        assert all(at_s >= now_s for at_s in left)
        assert backlog.due_at_s == min(left, default=None)
    backlog.forget(())
    assert backlog.due_at_s is None


def test_who_gets_the_next_message() -> None:
    def inbox(name: str, capacity: int) -> Inbox:
        return Inbox(name, "a", lambda: 0, capacity=capacity)

    def message(seq: int, size: int = 1) -> tl.Message:
        return tl.Message(topic="a", payload=bytes(size), seq=seq)

    members = FeederMembers("x")
    assert (members.free(), members.room, bool(members)) == (None, 0, False)
    one, two = inbox("one", 2), inbox("two", 4)
    members.add(one)
    members.add(two)
    assert (members.room, members.enough) == (6, 3)
    one.offer(message(1))
    assert members.free() is two, "it has less to do"
    one.offer(message(2))
    assert (members.free(), members.room) == (two, 4)
    # Who holds much in bytes gets no more, however many it has room for.
    members.hand(message(3, MAX_LARGE_BYTES), two)
    assert (members.free(), members.room) == (None, 0)
    members.pass_on(message(3, MAX_LARGE_BYTES), one)
    assert members.free() is two
    members.take(3)
    assert members.successor_of(two)(message(3)) is one
    two.abandoned = True
    assert (members.free(), members.abandoned) == (None, [two])
    members.remove(two)
    assert (members.all, members.enough) == ([one], 1)
