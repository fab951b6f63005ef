"""A run: consecutive plain messages of one bus on one topic, kept as columns.

They are sent as columns, and most publishers never read what they have published. So a message is built only when it is
read. In one process, the messages of a run are built together, when a subscriber takes the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import length_hint
from typing import Protocol

from trunkline.clock import Ids
from trunkline.message import Message
from trunkline.unchecked import number_all, seal, unchecked, unchecked_many

FEW_IDS = 4
"""A run first reserves this many ids, and then always three times its length: short runs waste few of them."""


class RunLane(Protocol):
    """The lane that a run is in."""

    topic: str
    has_subscribers: bool

    def count_run(self, run: PlainRun) -> None:
        """Count a closed run, to which nothing more is appended."""


class RunSampling(Protocol):
    """Decides which messages of a run start a trace."""

    def decide(self, run: PlainRun) -> None:
        """Decide about the messages from index `decided` on. Sets `decided`, and the `traces` of sampled messages."""


class PlainRun:
    """The bus may append to it while it is shorter than `room`. The lane counts the run when it is closed."""

    __slots__ = (
        "_closed",
        "_first",
        "_messages",
        "_wanted",
        "content_type",
        "decided",
        "ends_ns",
        "ids",
        "lane",
        "payloads",
        "reserved",
        "room",
        "routed",
        "sampling",
        "sender",
        "times",
        "topic",
        "traces",
    )

    def __init__(self, lane: RunLane | None, sender: str, content_type: str, room: int) -> None:
        self.lane = lane
        self.topic = "" if lane is None else lane.topic
        self.routed = lane is None or lane.has_subscribers
        self.sender = sender
        self.content_type = content_type
        self.room = room
        """The maximum length; 0 when the run is closed, or must be closed before the next message."""
        self._closed = lane is None
        self.reserved = 0
        """`Bus.publish` may append a payload and a time directly while the run is shorter than this, until `ends_ns`.
        The message gets the id at its index. 0 when the run is closed."""
        self.ends_ns = 0
        self.ids: list[str] = []
        """The ids of its messages. An open run also has those that are reserved for the next messages."""
        self.payloads: list[bytes] = []
        self.times: list[int] = []
        self.traces: dict[int, str] = {}
        """The `traceparent` of each message that has one, by index."""
        self.sampling: RunSampling | None = None
        self.decided = 0
        """How many messages `sampling` has decided about."""
        self._first = 0
        self._messages: list[Message] | None = None
        self._wanted = 0
        """The number of messages that the holders of parts have not opened, in total."""

    def __len__(self) -> int:
        return len(self.payloads)

    def append(self, ids: Ids, payload: bytes, now_ns: int) -> str:
        """Append a message, and return its id. Reserves ids for the next messages: in blocks they take half as long."""
        at = len(self.payloads)
        if at >= self.reserved or now_ns > self.ends_ns:
            del self.ids[at:]
            self.ids += ids.reserve(min(max(FEW_IDS, 3 * at), self.room - at), now_ns)
            self.reserved, self.ends_ns = len(self.ids), ids.ends_ns
        self.payloads.append(payload)
        self.times.append(now_ns)
        return self.ids[at]

    def extend(self, ids: Sequence[str], payloads: Sequence[bytes], now_ns: int) -> None:
        """Append messages that are not sampled, and have ids."""
        if self.sampling is not None:
            self.sampling.decide(self)
        self._release_ids()
        self.ids += ids
        self.payloads += payloads
        self.times += repeat(now_ns, len(ids))
        self.decided = len(self.payloads)

    def _release_ids(self) -> None:
        self.reserved = 0
        del self.ids[len(self.payloads) :]

    def close(self) -> None:
        """Close the run: nothing more is appended, and the lane counts it."""
        if not self._closed and self.lane is not None:
            self._closed = True
            self.room = 0
            self._release_ids()
            if self.sampling is not None:
                self.sampling.decide(self)
            self.lane.count_run(self)

    @property
    def messages(self) -> list[Message]:
        """The messages. They are built once for all holders of parts, and again for each later use. Closes the run."""
        if self._messages is None:
            self.close()
            first, count = self._first, len(self.ids)
            self._messages = unchecked_many(
                self.ids,
                repeat(self.topic),
                self.payloads,
                self.times,
                range(first, first + count) if first else repeat(0),
                repeat(self.sender),
                repeat(self.content_type),
            )
            for index, trace in self.traces.items():
                seal(self._messages[index], "trace", trace)
        return self._messages

    def message(self, index: int) -> Message:
        """One message, without building the others. The run is closed."""
        if self._messages is not None:
            return self._messages[index]
        message = unchecked(
            self.ids[index],
            self.topic,
            self.payloads[index],
            self.times[index],
            self._first + index,
            self.sender,
            self.content_type,
        )
        if (trace := self.traces.get(index)) is not None:
            seal(message, "trace", trace)
        return message

    def share(self, parts: int) -> None:
        """Set the number of holders that have the whole run as a RunPart."""
        self._wanted = parts * len(self.ids)

    def open_part(self, start: int, end: int) -> list[Message]:
        """The messages of a part.

        The run drops its references after the last part, because messages that a history keeps alive would cause cache
        misses."""
        messages = self.messages if end - start == len(self.ids) else self.messages[start:end]
        self.release(end - start)
        return messages

    def release(self, count: int) -> None:
        """A holder needs `count` of its messages no longer."""
        self._wanted -= count
        if not self._wanted:
            self._messages = None

    def number(self, first: int) -> None:
        """Give its messages consecutive numbers."""
        self._first = first
        if self._messages is not None:
            number_all(self._messages, first)

    @property
    def first(self) -> int:
        """The number of the first message; 0 if they have none."""
        return self._first

    @property
    def last(self) -> int:
        return self._first + len(self.payloads) - 1


NO_RUN = PlainRun(None, "", "", 0)


class RunPart:
    """Consecutive messages of a closed run. They are not built until the run is opened."""

    __slots__ = ("_end", "_run", "_start", "count", "first")

    def __init__(self, run: PlainRun, first: int, start: int, end: int) -> None:
        self._run = run
        self.first = first
        self._start = start
        self._end = end
        self.count = end - start

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def size(self) -> int:
        """The size of payloads and header fields, in bytes."""
        return sum(
            [len(message.payload) + message.header_bytes for message in self._run.messages[self._start : self._end]]
        )

    @property
    def since_ns(self) -> int:
        """When the first message was published."""
        return self._run.times[self._start]

    def open(self) -> list[Message]:
        return self._run.open_part(self._start, self._end)

    def payloads(self) -> list[bytes]:
        return self._run.payloads[self._start : self._end]

    @property
    def content_type(self) -> str:
        return self._run.content_type

    def message(self, index: int) -> Message:
        return self._run.message(self._start + index)

    def release(self, count: int) -> None:
        """`count` messages were taken without being opened."""
        self._run.release(count)

    def split(self, count: int) -> tuple[RunPart, RunPart]:
        """The first `count` messages, and the others."""
        middle = self._start + count
        return (
            RunPart(self._run, self.first, self._start, middle),
            RunPart(self._run, self.first + count, middle, self._end),
        )


class RunReader:
    """Takes the messages of a part one by one, as payloads: a message is built only if `current` is read."""

    __slots__ = ("_current", "_part", "_payloads", "_stopped_at", "payloads")

    def __init__(self, part: RunPart) -> None:
        self._part = part
        self._payloads = part.payloads()
        self.payloads = iter(self._payloads)
        """Taking a payload takes its message. The position of this iterator is the only record of that."""
        self._stopped_at: int | None = None
        self._current: Message | None = None

    @property
    def taken(self) -> int:
        """The number of messages that were taken."""
        if self._stopped_at is not None:
            return self._stopped_at
        return self._part.count - length_hint(self.payloads)

    @property
    def left(self) -> int:
        """The number of messages that can still be taken."""
        return length_hint(self.payloads)

    @property
    def first(self) -> int:
        """The number of the first message."""
        return self._part.first

    @property
    def current(self) -> Message:
        """The message that was taken last."""
        index = self.taken - 1
        if self._current is None or self._current.seq != self._part.first + index:
            self._current = self._part.message(index)
        return self._current

    def stop(self) -> RunPart | None:
        """End `payloads` here. Returns the messages that were not taken, if there are any."""
        if self._stopped_at is not None:
            return None
        self._stopped_at = taken = self.taken
        self._payloads.clear()
        self._part.release(taken)
        return self._part.split(taken)[1] if taken < self._part.count else None
