"""The position of a task: query, epoch, partition. It determines the ids of its messages, the same at every attempt."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

ROW_BITS = 32
_MASK = (1 << ROW_BITS) - 1
_VARIANT = "89ab"


class TaskPosition(NamedTuple):
    query: str
    epoch: int
    partition: int
    attempt: int = 0
    """The number of earlier attempts in the same stage."""
    run: str = ""
    """The run of a streaming query."""

    def ids(self, first: int, count: int, kind: str = "row") -> list[str]:
        """The ids of rows from `first` on: UUIDs of version 8. Ids of anything but rows have another `kind`."""
        end = first + count
        ids: list[str] = []
        while first < end:
            block = first >> ROW_BITS
            upto = min(end, (block + 1) << ROW_BITS)
            begin = self._begin(kind, block)
            ids += [f"{begin}{row & _MASK:08x}" for row in range(first, upto)]
            first = upto
        return ids

    def _begin(self, kind: str, block: int) -> str:
        """The id without the row number: 90 bits, unique for each position."""
        text = "\0".join((self.query, str(self.epoch), str(self.partition), kind, str(block)))
        digits = blake2b(text.encode(), digest_size=12).hexdigest()
        variant = _VARIANT[int(digits[15], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-8{digits[12:15]}-{variant}{digits[16:19]}-{digits[19:23]}"


class SeenEpochs:
    """The epochs of each run that this process has seen. Spark reuses its Python processes.

    Only the first epoch of a run can have been started by an earlier run. If this process has seen an earlier epoch of
    the same run, the current epoch is new.
    """

    MAX_RUNS = 1000

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], int] = {}

    def may_repeat(self, place: TaskPosition) -> bool:
        key = (place.query, place.run)
        if key not in self._first and len(self._first) >= self.MAX_RUNS:
            del self._first[next(iter(self._first))]
        return place.epoch <= self._first.setdefault(key, place.epoch)


class Repeats:
    """Decides for which batches the hub searches its journal: only for those that it may have.

    Every attempt waits until the hub has its first batch on a topic before it sends the next. If the journal does not
    have that batch, it has none of an earlier attempt. Otherwise an earlier attempt had at most `ahead` rows in flight
    beyond the last batch that the journal has.
    """

    def __init__(self, ahead: int, *, suspected: bool) -> None:
        self._ahead = ahead
        self._may_repeat = suspected
        self._clear: set[str] = set()
        self._known: dict[str, int] = {}

    def again(self, topic: str, row: int) -> bool:
        """Whether the hub may already have a batch that begins with this row."""
        if not self._may_repeat or topic in self._clear:
            return False
        return row <= self._known.get(topic, row) + self._ahead

    def record(self, topic: str, row: int, *, known: bool) -> None:
        """Record the answer of the hub."""
        if known:
            self._known[topic] = max(row, self._known.get(topic, 0))
        elif topic not in self._known:
            self._clear.add(topic)
