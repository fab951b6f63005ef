"""The cursor of a durable subscription: which messages were offered, are settled, or are still open. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

import msgspec


class Cursor:
    """A named position in the journal: all matching messages up to `high` have a fate, except pending ones.

    `read` is the last number that was offered to subscribers in this process.
    """

    def __init__(self, name: str, pattern: str, high: int, pending: Iterable[int] = ()) -> None:
        self.name = name
        self.pattern = pattern
        self.high = high
        self.read = high
        self.ahead = high
        """The last number that was read into memory. These messages are delivered even if the journal fails."""
        self._line: deque[int] = deque()
        """Offered messages in order. A settled one is removed when it reaches the front."""
        self._out: set[int] = set()
        """The messages in `_line` that have no fate yet."""
        self._again: list[int] = sorted(pending)
        """Messages in flight that are not in `_line`: pending when this process started, or redelivered by a user."""
        self._offered = 0
        self._places: dict[int, int] = {}
        """The ordinal of each message, until its fate is written."""
        self.changed = False

    def offer(self, seq: int) -> None:
        """Record that a message is offered to a subscriber for the first time. Numbers must ascend."""
        self._line.append(seq)
        self._out.add(seq)
        self._offered += 1
        self._places[seq] = self._offered
        self.read = seq

    def skip_to(self, seq: int) -> None:
        """Record that no message up to this number matches, except those already offered."""
        self.read = max(self.read, seq)

    def start_at(self, seq: int, pending: Iterable[int] = ()) -> None:
        """Start with the pending messages, and continue after this number. Nothing was offered yet."""
        self.high = self.read = self.ahead = seq
        self._again = sorted(pending)
        self.changed = True

    def rewind(self, unwritten: Iterable[int]) -> None:
        """Start again as after a restart, because no subscriber has the messages that were offered and have no fate.

        `unwritten` are messages whose fate is not written yet and is still needed by `ranges`.
        """
        self.catch_up()
        self._again = self.pending()
        self.read = self.ahead = self.high
        self._line.clear()
        self._out.clear()
        self._places = {seq: self._places[seq] for seq in unwritten if seq in self._places}

    def give_again(self, seq: int) -> bool:
        """Redeliver a settled message; False if it is in flight, or was not offered yet."""
        if seq > self.read or self.is_out(seq):
            return False
        insort(self._again, seq)
        self.changed = True
        return True

    def settle(self, seq: int) -> bool:
        """Record that a message has its fate. False if it was not in flight."""
        if seq in self._out:
            self._out.discard(seq)
            while self._line and self._line[0] not in self._out:
                self._line.popleft()
        elif self.is_again(seq):
            self._again.remove(seq)
        else:
            return False
        self.high = max(self.high, seq)
        self.changed = True
        return True

    def is_out(self, seq: int) -> bool:
        return seq in self._out or self.is_again(seq)

    def is_again(self, seq: int) -> bool:
        """Whether a message is in flight and not in `_line`."""
        at = bisect_left(self._again, seq)
        return at < len(self._again) and self._again[at] == seq

    def pending(self) -> list[int]:
        """The messages in flight below `high`, in order."""
        return sorted([*self._again, *(seq for seq in self._out if seq < self.high)])

    @property
    def low(self) -> int:
        """The number up to which all matching messages have a fate."""
        low = self.read
        if self._line:
            low = min(low, self._line[0] - 1)
        if self._again:
            low = min(low, self._again[0] - 1)
        return low

    @property
    def out(self) -> int:
        return len(self._out) + len(self._again)

    def ranges(self, seqs: Iterable[int]) -> list[tuple[int, int, int]]:
        """Numbers with one fate as ranges (first, last, count).

        Only messages that were offered in sequence share a range.
        """
        ranges: list[tuple[int, int, int]] = []
        before = -1
        for seq in sorted(seqs):
            place = self._places.pop(seq, -2)
            if ranges and place == before + 1:
                first, _, count = ranges[-1]
                ranges[-1] = (first, seq, count + 1)
            else:
                ranges.append((seq, seq, 1))
            before = place
        return ranges

    def forget_place(self, seq: int) -> None:
        """Exclude a message from `ranges`, because it has its own row."""
        self._places.pop(seq, None)

    def catch_up(self) -> None:
        """If nothing is in flight, move `high` to the last number that was read, not only to the last match."""
        if not self._out and not self._again and self.read > self.high:
            self.high = self.read
            self.changed = True


def pack(seqs: list[int]) -> bytes:
    return _encode(seqs)


def unpack(data: bytes) -> list[int]:
    return _decode(data)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode
