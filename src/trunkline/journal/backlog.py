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
    """A message with its own state: it has failed before, or was redelivered."""

    message: Message
    story: list[Attempt]
    due_ns: int


class ReadNumbers(msgspec.Struct, frozen=True):
    """Read the messages with these numbers, and pass them to `numbers_read`."""

    seqs: list[int]


class ReadOn(msgspec.Struct, frozen=True):
    """Read about this many matching messages beyond `cursor.read`, and pass them to `read_on`."""

    limit: int


class Backlog:
    """The order of offers: waiting messages, unread ones that precede new ones, those read ahead, then the journal."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.behind = True
        """Whether the journal has unread messages. If not, committed messages are offered at once."""
        self.waiting: deque[tuple[Message, list[Attempt]]] = deque()
        """Messages that are offered before new ones, out of order."""
        self._unread: list[int] = []
        """Numbers of messages to read and offer before new ones: they were in flight, or are the starting point."""
        self.ahead: deque[Message] = deque()
        """Messages that were read and not offered yet."""
        self._ahead_upto = cursor.read
        self._given: set[int] = set()
        """Messages that a user redelivered before the stored state was loaded."""
        self._kept: dict[int, KeptMessage] = {}
        """Messages that failed before the last restart and were not read again yet."""
        self._postponed: list[tuple[float, int, KeptMessage]] = []
        """A heap of due times and messages."""
        self._numbers = count()

    # Starting and restarting

    def start_at(self, seq: int, pending: Iterable[int]) -> None:
        self.cursor.start_at(seq, pending)
        self._ahead_upto = self.cursor.read

    def recalled(self, kept: Iterable[KeptMessage]) -> list[KeptMessage]:
        """Load the stored state. Returns the valid part, for `place`, after the unread messages were read."""
        # Messages that a user redelivered in the meantime are already here.
        mine = [each for each in kept if each.message.seq not in self._given]
        known = self._given | {each.message.seq for each in mine}
        self._unread = [seq for seq in self.cursor.pending() if seq not in known]
        return mine

    def place(self, kept: Iterable[KeptMessage]) -> list[KeptMessage]:
        """Returns the messages that are retried at their due time; the others keep their place in the order."""
        again: list[KeptMessage] = []
        for each in kept:
            if each.message.seq > self.cursor.read:
                # If it were settled before earlier messages, those would be skipped.
                self._kept[each.message.seq] = each
            else:
                self.cursor.give_again(each.message.seq)
                again.append(each)
        return again

    def forget(self, unwritten: Iterable[int]) -> None:
        """Without subscribers, forget what was read; it is still in the journal. Only the position is kept."""
        self.cursor.rewind(unwritten)
        self._ahead_upto = self.cursor.read
        for some in (self.waiting, self._unread, self.ahead, self._kept, self._given, self._postponed):
            some.clear()
        self.behind = True

    # Events

    def give_again(self, message: Message, *, recalled: bool) -> None:
        """Redeliver a message that already has a fate, at the request of a user."""
        self.cursor.give_again(message.seq)
        if not recalled:
            self._given.add(message.seq)
        self.waiting.appendleft((message, []))

    def hand_back(self, message: Message, story: list[Attempt]) -> None:
        """Take back a message from a member that leaves. The last one is offered first."""
        self.waiting.appendleft((message, story))

    def postpone(self, kept: KeptMessage, pause_s: float, now_s: float) -> None:
        """Offer a message after a pause.

        The pause is bounded, so that a clock that was set back does not delay it for ever.
        """
        if pause_s <= 0:
            self.waiting.append((kept.message, kept.story))
        else:
            heappush(self._postponed, (now_s + min(pause_s, MAX_PAUSE_S), next(self._numbers), kept))

    @property
    def due_at_s(self) -> float | None:
        """The due time of the next postponed message."""
        return self._postponed[0][0] if self._postponed else None

    def pass_time(self, now_s: float) -> None:
        """Move messages that are due to those that wait."""
        while self._postponed and self._postponed[0][0] <= now_s:
            _, _, kept = heappop(self._postponed)
            self.waiting.append((kept.message, kept.story))

    def committed(self, seq: int) -> bool:
        """Whether to offer a message that was just committed."""
        return not self.behind and seq > self.cursor.read

    def offer(self, seq: int) -> KeptMessage | None:
        """Offer a message for the first time in this process.

        If it failed before, it waits for its due time instead.
        """
        self.cursor.offer(seq)
        return self._kept.pop(seq, None) if self._kept else None

    # Reading

    def next_read(self, room: int) -> ReadNumbers | ReadOn | None:
        """The next read; None if messages that were read must be offered first."""
        wanted = max(room, READ_AHEAD)
        if self._unread:
            return ReadNumbers(self._unread[:wanted])
        return None if self.ahead else ReadOn(wanted)

    def numbers_read(self, action: ReadNumbers, found: Sequence[Message], left: Sequence[int]) -> list[int]:
        """Take the messages that were found. Returns the numbers that are neither found nor `left`: they are lost."""
        self._unread = [*left, *self._unread[len(action.seqs) :]]
        self.waiting.extend((message, []) for message in found)
        lost = sorted(set(action.seqs) - set(left) - {message.seq for message in found})
        for seq in lost:
            self.cursor.settle(seq)
        return lost

    def read_on(self, found: Sequence[Message], upto: int, committed: int) -> None:
        """Take messages beyond the cursor. Everything up to `upto` was read, when `committed` was the end."""
        self.ahead.extend(found)
        # Never beyond the committed end: a damaged row may claim any number.
        self._ahead_upto = min(upto, max(committed, found[-1].seq if found else 0))
        if self._ahead_upto <= self.cursor.read:
            # There is nothing beyond it, so everything up to here was read: the last numbers may be missing.
            self._ahead_upto = committed

    def all_offered(self) -> list[KeptMessage]:
        """Called when all messages read ahead are offered.

        Returns those that failed before and are stored only as retries.
        """
        self.cursor.skip_to(self._ahead_upto)
        passed = [seq for seq in self._kept if seq <= self.cursor.read]
        for seq in passed:
            self.cursor.give_again(seq)
        return [self._kept.pop(seq) for seq in passed]

    def caught_up(self, committed: int) -> bool:
        """Whether everything was read and offered. From then on `committed` decides."""
        if self.cursor.read >= committed:
            self.behind = False
        return not self.behind


class LargeMessages:
    """The large messages of each subscriber, and their bytes."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[Hashable, int]] = {}
        self._bytes: dict[Hashable, int] = {}

    def __bool__(self) -> bool:
        return bool(self._holders)

    def __contains__(self, seq: int) -> bool:
        return seq in self._holders

    def hand(self, seq: int, size: int, holder: Hashable) -> None:
        """Assign a message to a subscriber, even if another one had it before."""
        self.take(seq)
        self._holders[seq] = holder, size
        self._bytes[holder] = self._bytes.get(holder, 0) + size

    def take(self, seq: int) -> None:
        """Remove a message from its subscriber."""
        if (known := self._holders.pop(seq, None)) is not None:
            holder, size = known
            self._bytes[holder] -= size
            if not self._bytes[holder]:
                del self._bytes[holder]

    def bytes_of(self, holder: Hashable) -> int:
        return self._bytes.get(holder, 0)
