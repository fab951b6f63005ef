"""The messages that a durable subscription still has to get, and what is read next. Pure: events in, actions out.

The feeder passes events (`recalled`, `numbers_read`, `read_on`, `committed`, …), and the backlog returns actions. The
feeder performs them: it reads the journal, sets timers, and gives messages to subscribers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Final

import msgspec

from trunkline.delivery.dead_letters import Attempt
from trunkline.journal.cursor import Cursor
from trunkline.message import Message

READ_AHEAD: Final = 1000
MAX_PAUSE_S: Final = 3600.0
"""The longest pause before the next attempt: a clock that was set back must not keep a retry waiting for ever."""


class KeptMessage(msgspec.Struct, frozen=True):
    """A message in a state that its topic does not show: it has failed before, or was given back."""

    message: Message
    story: list[Attempt]
    due_ns: int


class ReadNumbers(msgspec.Struct, frozen=True):
    """Read the messages with these numbers, and tell `numbers_read`."""

    seqs: list[int]


class ReadOn(msgspec.Struct, frozen=True):
    """Read about so many that match beyond `cursor.read`, and tell `read_on`."""

    limit: int


class Backlog:
    """In this order: what waits, what is unread and comes before anything new, what was read ahead, the journal."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.behind = True
        """Whether there is something in the journal to be read. If not, what is committed is offered at once."""
        self.waiting: deque[tuple[Message, list[Attempt]]] = deque()
        """Out of order: to be offered before anything new."""
        self._unread: list[int] = []
        """The numbers of what is to be read and offered before anything new: it was out, or it is where to start."""
        self.ahead: deque[Message] = deque()
        """Read, and not offered yet."""
        self._ahead_upto = cursor.read
        self._given: set[int] = set()
        """Given back by a person before it was recalled what was kept."""
        self._kept: dict[int, KeptMessage] = {}
        """Failed before the last restart, and not read again yet."""
        self._postponed: list[tuple[float, int, KeptMessage]] = []
        """A heap: when it is due, and the message."""
        self._numbers = count()

    # The beginning, and beginning again

    def start_at(self, seq: int, pending: Iterable[int]) -> None:
        self.cursor.start_at(seq, pending)
        self._ahead_upto = self.cursor.read

    def recalled(self, kept: Iterable[KeptMessage]) -> list[KeptMessage]:
        """What is kept for it in the journal. Returns what counts of it, for `place`, when what is unread was read."""
        # What a person gave back while this was on its way is here already.
        mine = [each for each in kept if each.message.seq not in self._given]
        known = self._given | {each.message.seq for each in mine}
        self._unread = [seq for seq in self.cursor.pending() if seq not in known]
        return mine

    def place(self, kept: Iterable[KeptMessage]) -> list[KeptMessage]:
        """Returns those that are to be tried again when they are due; the others have their place in the order."""
        again: list[KeptMessage] = []
        for each in kept:
            if each.message.seq > self.cursor.read:
                # Were it settled before those that come first, they would be passed over.
                self._kept[each.message.seq] = each
            else:
                self.cursor.give_again(each.message.seq)
                again.append(each)
        return again

    def forget(self, unwritten: Iterable[int]) -> None:
        """Nobody works on it: what it has read is in the journal. What is left is its place."""
        self.cursor.rewind(unwritten)
        self._ahead_upto = self.cursor.read
        for some in (self.waiting, self._unread, self.ahead, self._kept, self._given, self._postponed):
            some.clear()
        self.behind = True

    # What comes

    def give_again(self, message: Message, *, recalled: bool) -> None:
        """A person gives back a message that has its fate."""
        self.cursor.give_again(message.seq)
        if not recalled:
            self._given.add(message.seq)
        self.waiting.appendleft((message, []))

    def hand_back(self, message: Message, story: list[Attempt]) -> None:
        """A member that leaves had it. Those that come last were first in line."""
        self.waiting.appendleft((message, story))

    def postpone(self, kept: KeptMessage, pause_s: float, now_s: float) -> None:
        """It is to be offered after a pause. A clock that was set back does not make it wait for ever."""
        if pause_s <= 0:
            self.waiting.append((kept.message, kept.story))
        else:
            heappush(self._postponed, (now_s + min(pause_s, MAX_PAUSE_S), next(self._numbers), kept))

    @property
    def due_at_s(self) -> float | None:
        """When the next of those that were postponed is due."""
        return self._postponed[0][0] if self._postponed else None

    def pass_time(self, now_s: float) -> None:
        """What is due by now waits to be offered."""
        while self._postponed and self._postponed[0][0] <= now_s:
            _, _, kept = heappop(self._postponed)
            self.waiting.append((kept.message, kept.story))

    def committed(self, seq: int) -> bool:
        """Whether a message that was just committed is to be offered now."""
        return not self.behind and seq > self.cursor.read

    def offer(self, seq: int) -> KeptMessage | None:
        """It is offered for the first time in this process. If it failed before, it is due at its time instead."""
        self.cursor.offer(seq)
        return self._kept.pop(seq, None) if self._kept else None

    # Reading

    def next_read(self, room: int) -> ReadNumbers | ReadOn | None:
        """What to read now; None if what was read must be offered first."""
        wanted = max(room, READ_AHEAD)
        if self._unread:
            return ReadNumbers(self._unread[:wanted])
        return None if self.ahead else ReadOn(wanted)

    def numbers_read(self, action: ReadNumbers, found: Sequence[Message], left: Sequence[int]) -> list[int]:
        """Some were found, and some are `left` to be read. Returns the others: they are lost, and have their fate."""
        self._unread = [*left, *self._unread[len(action.seqs) :]]
        self.waiting.extend((message, []) for message in found)
        lost = sorted(set(action.seqs) - set(left) - {message.seq for message in found})
        for seq in lost:
            self.cursor.settle(seq)
        return lost

    def read_on(self, found: Sequence[Message], upto: int, committed: int) -> None:
        """These lie beyond the cursor; everything up to `upto` was looked at, when `committed` was the end."""
        self.ahead.extend(found)
        # Never beyond what was committed: a damaged row may claim any end.
        self._ahead_upto = min(upto, max(committed, found[-1].seq if found else 0))
        if self._ahead_upto <= self.cursor.read:
            # There is nothing beyond, so this far everything was seen: numbers may be missing at the end.
            self._ahead_upto = committed

    def all_offered(self) -> list[KeptMessage]:
        """What was read ahead is offered. Returns what failed before, and is in the journal only as such."""
        self.cursor.skip_to(self._ahead_upto)
        passed = [seq for seq in self._kept if seq <= self.cursor.read]
        for seq in passed:
            self.cursor.give_again(seq)
        return [self._kept.pop(seq) for seq in passed]

    def caught_up(self, committed: int) -> bool:
        """Whether everything was read and offered. From then on `committed` is asked."""
        if self.cursor.read >= committed:
            self.behind = False
        return not self.behind


class LargeMessages:
    """Which subscriber has which large messages, and how many bytes that are."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[Hashable, int]] = {}
        self._bytes: dict[Hashable, int] = {}

    def __bool__(self) -> bool:
        return bool(self._holders)

    def __contains__(self, seq: int) -> bool:
        return seq in self._holders

    def hand(self, seq: int, size: int, holder: Hashable) -> None:
        """It goes to a subscriber, from whoever had it."""
        self.take(seq)
        self._holders[seq] = holder, size
        self._bytes[holder] = self._bytes.get(holder, 0) + size

    def take(self, seq: int) -> None:
        """No subscriber has this one now."""
        if (known := self._holders.pop(seq, None)) is not None:
            holder, size = known
            self._bytes[holder] -= size
            if not self._bytes[holder]:
                del self._bytes[holder]

    def bytes_of(self, holder: Hashable) -> int:
        return self._bytes.get(holder, 0)
