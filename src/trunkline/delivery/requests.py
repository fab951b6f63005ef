"""Requests and orphans: every answer finds the request it belongs to, also when it comes first, or too late.

Pure bookkeeping: times come in, and whoever waits is a callback. Kernels, actors and agents share it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from trunkline.message import Message
from trunkline.settings import Orphans as OrphanLimits

Answer = Callable[[Message], bool]
"""Takes an answer; returns True when the request is complete and wants no more."""


class Why(enum.StrEnum):
    EARLY = "no request with this id (yet)"
    LATE = "its request was answered, timed out or was given up"
    NO_REQUEST_ID = "it names no request"


class Orphan(msgspec.Struct, frozen=True):
    """A message that answers a request nobody has registered."""

    message: Message
    why: Why
    at_s: float


class Pending(msgspec.Struct):
    """One open request."""

    request_id: str
    sender: str
    sent_at_s: float
    answer: Answer


class OrphanBox:
    """Orphans in the order they came: at most `max_messages`, none older than `max_age_s`."""

    def __init__(self, limits: OrphanLimits) -> None:
        self._limits = limits
        self._orphans: deque[Orphan] = deque()
        self.total = 0
        self.evicted = 0
        self.aged = 0
        self.claimed = 0

    def __len__(self) -> int:
        return len(self._orphans)

    def __iter__(self) -> Iterator[Orphan]:
        return iter(list(self._orphans))

    def add(self, orphan: Orphan) -> None:
        self.expire(orphan.at_s)
        self._orphans.append(orphan)
        self.total += 1
        if len(self._orphans) > self._limits.max_messages:
            self._orphans.popleft()
            self.evicted += 1

    def expire(self, now_s: float) -> int:
        """Let go of what is too old; say how many that were."""
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

    def claim(self, request_id: str) -> list[Orphan]:
        """Take out what answers this request, in the order it came."""
        if not self._orphans:
            return []
        mine = self.find(request_id=request_id)
        if mine:
            self._orphans = deque(orphan for orphan in self._orphans if orphan.message.request_id != request_id)
            self.claimed += len(mine)
        return mine


class Requests:
    """The table of open requests. An answer is routed by one lookup; without one it becomes an orphan."""

    def __init__(self, limits: OrphanLimits) -> None:
        self._open: dict[str, Pending] = {}
        self._ended: dict[str, None] = {}
        self._max_ended = limits.max_messages
        self.orphans = OrphanBox(limits)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __iter__(self) -> Iterator[Pending]:
        return iter(list(self._open.values()))

    def open(self, pending: Pending) -> None:
        """Register a request, before it is sent. Orphans that answer it are claimed, in order, at once."""
        self._open[pending.request_id] = pending
        self._ended.pop(pending.request_id, None)
        self.orphans.expire(pending.sent_at_s)
        for orphan in self.orphans.claim(pending.request_id):
            self.answer(orphan.message, pending.sent_at_s)

    def answer(self, message: Message, now_s: float) -> bool:
        """Give an answer to its request; False if it became an orphan."""
        request_id = message.request_id
        if request_id is None:
            self.orphans.add(Orphan(message, Why.NO_REQUEST_ID, now_s))
            return False
        pending = self._open.get(request_id)
        if pending is None:
            why = Why.LATE if request_id in self._ended else Why.EARLY
            self.orphans.add(Orphan(message, why, now_s))
            return False
        if pending.answer(message):
            self.close(request_id)
        return True

    def close(self, request_id: str) -> None:
        """Forget a request: answered, timed out, failed or cancelled. Closing twice is fine."""
        if self._open.pop(request_id, None) is None:
            return
        self._ended[request_id] = None
        if len(self._ended) > self._max_ended:
            del self._ended[next(iter(self._ended))]
