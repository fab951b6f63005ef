"""Requests and orphans: every answer is matched with its request, even if it arrives too early or too late.

Pure: the caller passes the time, and results are reported by callbacks. Kernels, actors and agents use it.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from trunkline.errors import DuplicateName
from trunkline.message import Message
from trunkline.settings import Orphans as OrphanLimits

if TYPE_CHECKING:
    from trunkline.delivery.ledger import Ledger

MAX_IDLE_TIMEOUTS = 16

Answer = Callable[[Message], bool]
"""Takes an answer; returns True when the request is complete and expects no more."""


class Why(enum.StrEnum):
    EARLY = "no request with this id (yet)"
    LATE = "its request was answered, timed out or was given up"
    ANSWERED = "its request was complete already"
    STALE = "its request reached its time limit"
    CLOSED = "its request was closed by its caller"
    DROPPED = "its request was dropped without being closed"
    WRONG_ID = "its request was never sent by this client"
    NO_REQUEST_ID = "it names no request"
    UNKNOWN_TYPE = "its request has no use for it"


LATE = Why.LATE


class Orphan(msgspec.Struct, frozen=True):
    """An answer whose request is not registered."""

    message: Message
    why: Why
    at_s: float
    """When it arrived, by the clock that measures its age. The time of day is in the message."""


class OpenRequest(Protocol):
    """The attributes of a request that the table uses."""

    request_id: str
    sender: str
    topic: str
    sent_at_s: float
    timeout_s: float

    @property
    def deadline_s(self) -> float: ...

    @property
    def accepts(self) -> Callable[[Message], bool] | None:
        """Returns whether the request can process an answer; None if it can process any."""

    @property
    def answer(self) -> Answer: ...

    @property
    def fail(self) -> Callable[[Exception], None]: ...


class Pending(msgspec.Struct):
    """One open request: its sender, topic and time, and callbacks for an answer and for a failure."""

    request_id: str
    sender: str
    topic: str
    sent_at_s: float
    timeout_s: float
    answer: Answer
    fail: Callable[[Exception], None]
    accepts: Callable[[Message], bool] | None = None

    @property
    def deadline_s(self) -> float:
        return self.sent_at_s + self.timeout_s


class OrphanBox:
    """Orphans in order of arrival: at most `max_messages`, none older than `max_age_s`."""

    def __init__(self, limits: OrphanLimits) -> None:
        self._limits = limits
        self._orphans: deque[Orphan] = deque()
        self.total = 0
        self.evicted = 0
        self.aged = 0
        self.claimed = 0
        self.ledger: Ledger | None = None

    def __len__(self) -> int:
        return len(self._orphans)

    def __iter__(self) -> Iterator[Orphan]:
        return iter(list(self._orphans))

    def add(self, orphan: Orphan) -> None:
        if self.ledger is not None:
            self.ledger.orphaned(orphan)
        self.restore(orphan)

    def restore(self, orphan: Orphan) -> None:
        """Keep an orphan that is already stored."""
        self.expire(orphan.at_s)
        self._orphans.append(orphan)
        self.total += 1
        if len(self._orphans) > self._limits.max_messages:
            self._orphans.popleft()
            self.evicted += 1

    def expire(self, now_s: float) -> int:
        """Remove orphans that are too old. Returns their number."""
        before = len(self._orphans)
        while self._orphans and now_s - self._orphans[0].at_s > self._limits.max_age_s:
            self._orphans.popleft()
        gone = before - len(self._orphans)
        self.aged += gone
        return gone

    def find(
        self, *, request_id: str | None = None, sender: str | None = None, topic: str | None = None
    ) -> list[Orphan]:
        return [
            orphan
            for orphan in self._orphans
            if (request_id is None or orphan.message.request_id == request_id)
            and (sender is None or orphan.message.sender == sender)
            and (topic is None or orphan.message.topic == topic)
        ]

    def claim(self, request_id: str, give: Callable[[Message], bool], why: Callable[[Message], Why]) -> None:
        """Pass the answers to this request to `give`, in order of arrival. Those that are not accepted stay, with the
        reason from `why`.
        """
        kept: deque[Orphan] = deque()
        for orphan in self._orphans:
            if orphan.message.request_id == request_id:
                if give(orphan.message):
                    self.claimed += 1
                    if self.ledger is not None:
                        self.ledger.claimed(orphan)
                    continue
                orphan = Orphan(orphan.message, why(orphan.message), orphan.at_s)
            kept.append(orphan)
        self._orphans = kept


class Requests:
    """The table of open requests. The request of an answer is found by one lookup. An answer without a request becomes
    an orphan.
    """

    def __init__(self, limits: OrphanLimits) -> None:
        self._open: dict[str, OpenRequest] = {}
        # Grouped by timeout: within a group the oldest is always the next to be due. One timer serves all.
        self._by_timeout: dict[float, dict[str, OpenRequest]] = {}
        self._ended: OrderedDict[str, Why] = OrderedDict()
        self._max_ended = limits.max_messages
        self.orphans = OrphanBox(limits)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(list(self._open.values()))

    def find(self, request_id: str) -> OpenRequest | None:
        return self._open.get(request_id)

    def open(self, pending: OpenRequest, *, timed: bool = True) -> None:
        """Register a request, before it is sent. Orphans that answer it are claimed at once, in order.

        Raises DuplicateName if the id is already open. A request that is not `timed` is never due before `time` is
        called.
        """
        request_id = pending.request_id
        if request_id in self._open:
            raise DuplicateName("request", request_id)
        self._open[request_id] = pending
        if timed:
            self.time(pending)
        if request_id in self._ended:
            del self._ended[request_id]
        if self.orphans.total and len(self.orphans):
            self.orphans.expire(pending.sent_at_s)
            self.orphans.claim(request_id, self.answer, self.why)

    def time(self, pending: OpenRequest) -> None:
        """Make an open request due at its deadline."""
        waiting = self._by_timeout.get(pending.timeout_s)
        if waiting is None:
            waiting = self._by_timeout[pending.timeout_s] = {}
        waiting[pending.request_id] = pending

    def answer(self, message: Message) -> bool:
        """Pass an answer to its request. False if no open request accepts it: then it is an orphan."""
        request_id = message.request_id
        pending = None if request_id is None else self._open.get(request_id)
        if pending is None or (pending.accepts is not None and not pending.accepts(message)):
            return False
        if pending.answer(message):
            self.close(pending.request_id)
        return True

    def keep_orphan(self, message: Message, now_s: float, why: Why | None = None) -> Orphan:
        """Keep an answer that no open request accepts. `why` is the reason, if the caller has a more precise one."""
        orphan = Orphan(message, why or self.why(message), now_s)
        self.orphans.add(orphan)
        return orphan

    def why(self, message: Message) -> Why:
        """The reason why no request accepts an answer."""
        if message.request_id is None:
            return Why.NO_REQUEST_ID
        if message.request_id in self._open:
            return Why.UNKNOWN_TYPE
        return self._ended.get(message.request_id, Why.EARLY)

    def replay_orphan(self, orphan: Orphan) -> None:
        """Pass an orphan from before a restart to its request, if that is open. Otherwise keep it to be claimed."""
        if self.answer(orphan.message):
            self.orphans.claimed += 1
            if self.orphans.ledger is not None:
                self.orphans.ledger.claimed(orphan)
        else:
            self.orphans.restore(orphan)

    def extend(self, request_id: str, now_s: float, timeout_s: float) -> None:
        """Restart the timeout of an open request, with `timeout_s` from now. Otherwise does nothing."""
        pending = self._open.get(request_id)
        if pending is not None:
            self._by_timeout.get(pending.timeout_s, {}).pop(request_id, None)
            # Counted from now, so that within one timeout the oldest is still the next to be due.
            pending.sent_at_s, pending.timeout_s = now_s, timeout_s
            self.time(pending)

    def end_as(self, request_id: str, why: Why) -> None:
        """Set the reason with which answers to a request that ends, or has ended, become orphans."""
        self._ended[request_id] = why
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)

    def close(self, request_id: str) -> None:
        """Forget a request: answered, timed out, failed or cancelled. Closing twice is fine."""
        pending = self._open.pop(request_id, None)
        if pending is None:
            return
        waiting = self._by_timeout.get(pending.timeout_s)
        if waiting is not None:
            waiting.pop(request_id, None)
            if not waiting and len(self._by_timeout) > MAX_IDLE_TIMEOUTS:
                del self._by_timeout[pending.timeout_s]
        self._ended.setdefault(request_id, LATE)
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)

    def due(self, now_s: float) -> list[OpenRequest]:
        """Remove and return the requests whose deadline has passed."""
        due: list[OpenRequest] = []
        for timeout_s, waiting in list(self._by_timeout.items()):
            while waiting:
                oldest = next(iter(waiting.values()))
                if oldest.deadline_s > now_s:
                    break
                due.append(oldest)
                self.close(oldest.request_id)
            if not waiting:
                self._by_timeout.pop(timeout_s, None)
        return due

    def next_deadline(self) -> float | None:
        firsts = (next(iter(waiting.values())) for waiting in self._by_timeout.values() if waiting)
        return min((pending.deadline_s for pending in firsts), default=None)
