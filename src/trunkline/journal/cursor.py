"""The cursor of a durable subscription: what it was offered, what has its fate, what is still out. Pure bookkeeping."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

import msgspec


class Cursor:
    """Named, and kept in the journal: everything up to `high` that matches has its fate, except what is pending.

    `read` is how far it was offered to subscribers in this process.
    """

    def __init__(self, name: str, pattern: str, high: int, pending: Iterable[int] = ()) -> None:
        self.name = name
        self.pattern = pattern
        self.high = high
        self.read = high
        self._out: deque[int] = deque()
        """Offered, in order; what is settled leaves when it comes to the front."""
        self._settled: set[int] = set()
        self._again: list[int] = sorted(pending)
        """Out of order: pending when this process began, or given back by a person."""
        self.changed = False

    def offer(self, seq: int) -> bool:
        """It is to go to a subscriber for the first time; False if it is out already. Numbers rise."""
        self.read = seq
        if self._again and self._is_again(seq):
            return False
        self._out.append(seq)
        return True

    def _is_again(self, seq: int) -> bool:
        at = bisect_left(self._again, seq)
        return at < len(self._again) and self._again[at] == seq

    def skip_to(self, seq: int) -> None:
        """Nothing up to here matches, beyond what was offered."""
        self.read = max(self.read, seq)

    def start_at(self, seq: int) -> None:
        """Begin after this number: nothing was offered yet."""
        self.high = self.read = seq
        self.changed = True

    def give_again(self, seq: int) -> None:
        """A settled message is to be handled once more."""
        if not self.is_out(seq):
            insort(self._again, seq)
            self.changed = True

    def settle(self, seq: int) -> bool:
        """It has its fate; False if it was not out."""
        if self._is_again(seq):
            self._again.remove(seq)
        elif seq > self.read or seq in self._settled or not self._out or seq < self._out[0]:
            return False
        else:
            self._settled.add(seq)
            while self._out and self._out[0] in self._settled:
                self._settled.discard(self._out.popleft())
        self.high = max(self.high, seq)
        self.changed = True
        return True

    def is_out(self, seq: int) -> bool:
        if self._is_again(seq):
            return True
        return bool(self._out) and self._out[0] <= seq <= self.read and seq not in self._settled

    def pending(self) -> list[int]:
        """What is out below `high`, in order."""
        out = [seq for seq in self._out if seq < self.high and seq not in self._settled]
        return sorted([*self._again, *out])

    @property
    def low(self) -> int:
        """Everything up to here that matches has its fate."""
        low = self.read
        if self._out:
            low = min(low, self._out[0] - 1)
        if self._again:
            low = min(low, self._again[0] - 1)
        return low

    @property
    def out(self) -> int:
        return len(self._out) - len(self._settled) + len(self._again)

    def ranges(self, seqs: Iterable[int]) -> list[tuple[int, int, int]]:
        """Numbers with the same fate as (first, last, count), not across any that is still out."""
        ranges: list[tuple[int, int, int]] = []
        out = sorted([*(seq for seq in self._out if seq not in self._settled), *self._again])
        for seq in sorted(seqs):
            if ranges:
                first, last, count = ranges[-1]
                if seq == last + 1 or bisect_left(out, last) == bisect_left(out, seq):
                    ranges[-1] = (first, seq, count + 1)
                    continue
            ranges.append((seq, seq, 1))
        return ranges

    def catch_up(self) -> None:
        """Nothing is out, so everything read has its fate: remember that, not only the last that matched."""
        if not self._out and not self._again and self.read > self.high:
            self.high = self.read
            self.changed = True


def pack(seqs: list[int]) -> bytes:
    return _encode(seqs)


def unpack(data: bytes) -> list[int]:
    return _decode(data)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode
