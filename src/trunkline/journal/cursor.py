"""The cursor of a durable subscription: which messages were offered, are settled, or are still open. Pure."""

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
        self.ahead = high
        """How far it was read into memory: what lies there is handed out, whatever becomes of the journal."""
        self._line: deque[int] = deque()
        """Offered, in order; what is settled leaves when it comes to the front."""
        self._out: set[int] = set()
        """Of those in line, the ones without a fate."""
        self._again: list[int] = sorted(pending)
        """Out as well, beside the line: pending when this process began, or given back by a person."""
        self._offered = 0
        self._places: dict[int, int] = {}
        """The how manyth each was, until its fate is written."""
        self.changed = False

    def offer(self, seq: int) -> None:
        """It goes to a subscriber for the first time. Numbers rise."""
        self._line.append(seq)
        self._out.add(seq)
        self._offered += 1
        self._places[seq] = self._offered
        self.read = seq

    def skip_to(self, seq: int) -> None:
        """Nothing up to here matches, beyond what was offered."""
        self.read = max(self.read, seq)

    def start_at(self, seq: int, pending: Iterable[int] = ()) -> None:
        """Begin with those that are pending, and go on after this number. Nothing was offered yet."""
        self.high = self.read = self.ahead = seq
        self._again = sorted(pending)
        self.changed = True

    def rewind(self, unwritten: Iterable[int]) -> None:
        """Nobody has what was offered and has no fate: begin again where a restart would.

        `unwritten` are those whose fate is for `ranges` still.
        """
        self.catch_up()
        self._again = self.pending()
        self.read = self.ahead = self.high
        self._line.clear()
        self._out.clear()
        self._places = {seq: self._places[seq] for seq in unwritten if seq in self._places}

    def give_again(self, seq: int) -> bool:
        """A settled message is to be handled once more; False if it is out, or was not even offered yet."""
        if seq > self.read or self.is_out(seq):
            return False
        insort(self._again, seq)
        self.changed = True
        return True

    def settle(self, seq: int) -> bool:
        """It has its fate; False if it was not out."""
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
        """Whether it is out beside the line."""
        at = bisect_left(self._again, seq)
        return at < len(self._again) and self._again[at] == seq

    def pending(self) -> list[int]:
        """What is out below `high`, in order."""
        return sorted([*self._again, *(seq for seq in self._out if seq < self.high)])

    @property
    def low(self) -> int:
        """Everything up to here that matches has its fate."""
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
        """Numbers with one fate, each once, as (first, last, count): only what was offered in a row is together."""
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
        """It is not for `ranges`: it has a row of its own."""
        self._places.pop(seq, None)

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
