"""The inbox: one subscriber's bounded queue, in order of priority, with a named policy for when it is full.

Everything here runs in one event loop thread. The publisher's fast path writes `queue` directly: see `room`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trunkline.delivery.fates import Account, Fate, Outcome, Record
from trunkline.errors import BackpressureTimeout, Congested, InboxFull
from trunkline.message import NORMAL, Message
from trunkline.settings import Backpressure
from trunkline.topic import matches

if TYPE_CHECKING:
    from trunkline.delivery.custody import Custody

log = logging.getLogger("trunkline.delivery")

ADMIT_ROOM: Final = 64
ADMIT_AFTER_S: Final = 0.05


class Overflow(enum.StrEnum):
    """What happens to a message that finds the inbox full."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    REJECT = "reject"


Gate = Callable[[Message], str | None]
"""Says why a message is not for this subscriber (a filter, a duplicate), or None to let it in."""


class Parked:
    """A publish that waits for room. The message moves in by itself; `entered` then wakes the publisher."""

    __slots__ = ("entered", "inbox", "message", "since")

    def __init__(self, inbox: Inbox, message: Message) -> None:
        loop = asyncio.get_running_loop()
        self.inbox = inbox
        self.message = message
        self.entered: asyncio.Future[None] = loop.create_future()
        self.since = loop.time()

    async def wait(self, limits: Backpressure) -> None:
        """Return when the message is in the inbox; raise BackpressureTimeout if nobody makes room.

        Cancelled or timed out, the message leaves the waiting line and its fate is recorded as dropped.
        """
        loop = asyncio.get_running_loop()
        # From the moment of parking: a publisher that waits for several waits for all of them at once.
        deadline = self.since + limits.timeout_s
        stretch_s = limits.wait_s
        try:
            while not self.entered.done():
                stretch_ends = min(deadline, loop.time() + stretch_s)
                await asyncio.wait([self.entered], timeout=stretch_ends - loop.time())
                if self.entered.done():
                    return
                if stretch_ends >= deadline:
                    self.inbox.unpark(self, f"backpressure timeout after {limits.timeout_s:g} s")
                    raise BackpressureTimeout(self.inbox.name, limits.timeout_s)
                stretch_s *= 2
                log.debug("%s is congested: %d publishes wait", self.inbox.name, len(self.inbox.parked))
        except asyncio.CancelledError:
            if not self.entered.done():
                self.inbox.unpark(self, "its publisher was cancelled while waiting for room")
            raise


class Inbox:
    """Messages waiting for one subscriber: highest priority first, first in first out within a priority."""

    __slots__ = (
        "_admission",
        "_lanes",
        "_levels",
        "abandoned",
        "accepted",
        "capacity",
        "careful",
        "closed",
        "custody",
        "delayed",
        "delivered",
        "gate",
        "gone",
        "held",
        "idle",
        "in_lanes",
        "leave",
        "marked",
        "max_parked",
        "name",
        "overflow",
        "parked",
        "pattern",
        "queue",
        "record",
        "room",
        "settled",
        "sleepers",
        "time_ns",
    )

    def __init__(
        self,
        name: str,
        pattern: str,
        time_ns: Callable[[], int],
        *,
        capacity: int = 10_000,
        overflow: Overflow = Overflow.BLOCK,
        max_parked: int = 10_000,
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.time_ns = time_ns
        self.capacity = capacity
        self.overflow = overflow
        self.max_parked = max_parked
        self.gate: Gate | None = None
        self.queue: deque[Message] = deque()
        """The lane of normal priority. Never replaced: the fast paths keep it."""
        self._lanes: dict[int, deque[Message]] = {}
        self._levels: list[int] = []
        self.in_lanes = 0
        self.room = capacity
        """How long `queue` may grow before `offer` must be asked. 0 while publishers wait or the inbox is closed."""
        self.marked = 0
        """How many of the waiting messages have a ttl or require an acknowledgement."""
        self.careful = False
        """Whether the next message needs `pull`: other lanes in use, marked messages, publishers waiting."""
        self.sleepers: deque[asyncio.Future[None]] = deque()
        self.parked: deque[Parked] = deque()
        self._admission: asyncio.TimerHandle | None = None
        self.held = 0
        """Handed out, not yet acknowledged."""
        self.delayed = 0
        """Waiting for their next attempt; they keep their place in the capacity."""
        self.closed = False
        self.abandoned = False
        """Its stream is gone without a goodbye: whoever notices lets it leave."""
        self.gone = False
        """It has left."""
        self.leave: Callable[[Inbox], None] | None = None
        self.accepted = 0
        self.delivered = 0
        self.settled: dict[Fate, int] = dict.fromkeys((Fate.FILTERED, Fate.EXPIRED, Fate.DROPPED, Fate.DEAD), 0)
        self.record = Record()
        self.custody: Custody | None = None
        self.idle: asyncio.Event | None = None
        """If there: somebody waits for the moment when nothing is in flight."""

    # What goes in

    def offer(self, message: Message) -> Parked | None:
        """Take the message or settle its fate now; or return the Parked whose `wait` the publisher must await.

        Raises InboxFull (policy `reject`) or Congested (too many wait); the fate is recorded then, too.
        """
        self.accepted += 1
        if (
            len(self.queue) < self.room
            and message.priority == NORMAL
            and message.ttl_s is None
            and not message.requires_ack
            and self.gate is None
        ):
            # Nothing special about it: the same three steps as in the publishers' short cut.
            self.queue.append(message)
            if self.sleepers:
                self.wake()
            return None
        if self.closed or self.abandoned:
            self.settle(message, Fate.DROPPED, "the subscriber is gone")
            if self.abandoned and self.leave is not None:
                self.leave(self)
            return None
        if self.gate is not None and (why := self.gate(message)) is not None:
            self.settle(message, Fate.FILTERED, why)
            return None
        if self.free > 0 and not self.parked:
            self._put(message)
            return None
        return self._overflow(message)

    @property
    def depth(self) -> int:
        return len(self.queue) + self.in_lanes

    @property
    def free(self) -> int:
        return self.capacity - len(self.queue) - self.in_lanes - self.delayed

    @property
    def in_flight(self) -> int:
        return len(self.queue) + self.in_lanes + len(self.parked) + self.held + self.delayed

    def _put(self, message: Message, *, front: bool = False) -> None:
        if message.priority == NORMAL:
            lane = self.queue
        else:
            lane = self._lane(message.priority)
            self.in_lanes += 1
        if front:
            lane.appendleft(message)
        else:
            lane.append(message)
        if message.ttl_s is not None or message.requires_ack:
            self.marked += 1
        self._measure()
        if self.sleepers:
            self.wake()

    def _lane(self, priority: int) -> deque[Message]:
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            self._levels = sorted(self._lanes, reverse=True)
        return lane

    def _measure(self) -> None:
        self.careful = bool(self.parked or self.in_lanes or self.marked)
        self.room = 0 if self.parked or self.closed or self.abandoned else self.capacity - self.in_lanes - self.delayed

    def _overflow(self, message: Message) -> Parked | None:
        if self.overflow is not Overflow.BLOCK and not self.settled[Fate.DROPPED]:
            log.warning(
                "%s is full (%d) and begins to lose messages: %s", self.name, self.capacity, self.overflow.value
            )
        match self.overflow:
            case Overflow.BLOCK:
                if len(self.parked) >= self.max_parked:
                    self.settle(message, Fate.DROPPED, f"congested: {len(self.parked)} publishes waited already")
                    raise Congested(self.name, len(self.parked))
                parked = Parked(self, message)
                self.parked.append(parked)
                self._measure()
                return parked
            case Overflow.DROP_OLDEST:
                self._drop_oldest_for(message)
            case Overflow.DROP_NEWEST:
                self.settle(message, Fate.DROPPED, f"drop_newest: the inbox is full ({self.capacity})")
            case Overflow.REJECT:
                self.settle(message, Fate.DROPPED, f"rejected: the inbox is full ({self.capacity})")
                raise InboxFull(self.name, self.capacity)
        return None

    def _drop_oldest_for(self, message: Message) -> None:
        """Make room by dropping the oldest of the lowest priority, unless that outranks the newcomer."""
        lowest = next((level for level in reversed(self._levels) if level < NORMAL and self._lanes[level]), None)
        if lowest is None and self.queue:
            lowest = NORMAL
        if lowest is None:
            lowest = next((level for level in reversed(self._levels) if self._lanes[level]), None)
        if lowest is None or lowest > message.priority:
            # Everything outranks it, or only delayed retries fill the inbox.
            self.settle(message, Fate.DROPPED, f"drop_oldest: the inbox is full ({self.capacity}) of what ranks higher")
            return
        victim = self._pop_lane(lowest)
        self.settle(victim, Fate.DROPPED, f"drop_oldest: the inbox is full ({self.capacity})")
        self._put(message)

    # What comes out

    def pull(self) -> Message | None:
        """The next message, or None if there is none now. What is expired gets its fate on the way.

        The caller says what becomes of it: `count_delivered`, or `held` and later a fate.
        """
        while True:
            level = self._next_level()
            if level is None:
                if not self.parked:
                    return None
                self.admit()
                if not self.depth:
                    return None
                continue
            message = self._pop_lane(level)
            if self.parked:
                self._admit_if_worth_it()
            if message.ttl_s is None or not self.expire(message):
                return message

    def _next_level(self) -> int | None:
        if self.in_lanes:
            for level in self._levels:
                if level < NORMAL and self.queue:
                    break
                if self._lanes[level]:
                    return level
        return NORMAL if self.queue else None

    def _pop_lane(self, level: int) -> Message:
        if level == NORMAL:
            message = self.queue.popleft()
        else:
            message = self._lanes[level].popleft()
            self.in_lanes -= 1
        if message.ttl_s is not None or message.requires_ack:
            self.marked -= 1
        if self.careful:
            self._measure()
        return message

    def expire(self, message: Message) -> bool:
        """Whether the message is past its ttl; if so, that is its fate."""
        expires_ns = message.expires_ns
        if expires_ns is None or self.time_ns() < expires_ns:
            return False
        self.settle(message, Fate.EXPIRED, f"its ttl of {message.ttl_s:g} s had passed when it was taken")
        return True

    def count_delivered(self, message: Message) -> None:
        self.delivered += 1
        self.record.delivered_one(message.seq, self.time_ns())
        if self.idle is not None:
            self.check_idle()

    async def sleep(self) -> None:
        """Return at the next wake-up: something came in, was acknowledged, or the inbox was closed."""
        self.check_idle()
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append(sleeper)
        try:
            await sleeper
        except asyncio.CancelledError:
            if not sleeper.cancelled():
                # Woken and cancelled in the same turn: pass the wake-up on, or another sleeper misses a message.
                self.wake()
            elif sleeper in self.sleepers:
                self.sleepers.remove(sleeper)
            raise

    def check_idle(self) -> None:
        """Tell whoever waits for it if nothing is in flight."""
        if self.idle is not None and not self.in_flight:
            self.idle.set()

    def wake(self) -> None:
        while self.sleepers:
            sleeper = self.sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return

    # Publishers that wait

    def _admit_if_worth_it(self) -> None:
        # One wake-up for many places; but nobody waits longer than a moment for room that is there.
        if self.free >= min(ADMIT_ROOM, self.capacity):
            self.admit()
        elif self._admission is None:
            loop = asyncio.get_running_loop()
            since = self.parked[0].since
            if loop.time() - since >= ADMIT_AFTER_S:
                self.admit()
            else:
                self._admission = loop.call_at(since + ADMIT_AFTER_S, self.admit)

    def admit(self) -> None:
        """Move waiting messages in while there is room, in order, and wake their publishers."""
        if self._admission is not None:
            self._admission.cancel()
            self._admission = None
        while self.parked and self.free > 0:
            parked = self.parked.popleft()
            parked.entered.set_result(None)
            self._put(parked.message)
        self._measure()

    def unpark(self, parked: Parked, why: str) -> None:
        """Take a publish out of the waiting line; nothing happens if it has entered."""
        if not parked.entered.done():
            parked.entered.cancel()
            self.parked.remove(parked)
            self.settle(parked.message, Fate.DROPPED, why)
            self._measure()

    # What comes back

    def return_to_front(self, message: Message) -> None:
        """A message that was handed out goes first again."""
        self._put(message, front=True)

    def delay(self) -> None:
        """A message that was handed out waits for its next attempt: it keeps its place in the capacity."""
        self.delayed += 1
        self._measure()

    # Fates

    def settle(self, message: Message, fate: Fate, reason: str) -> None:
        """Record how it ended, for anything but delivery."""
        self.settled[fate] += 1
        self.record.row(message.seq, fate, reason, self.time_ns())
        if self.idle is not None:
            self.check_idle()

    def account(self) -> Account:
        return Account(
            accepted=self.accepted,
            delivered=self.delivered,
            filtered=self.settled[Fate.FILTERED],
            expired=self.settled[Fate.EXPIRED],
            dropped=self.settled[Fate.DROPPED],
            dead=self.settled[Fate.DEAD],
            in_flight=self.in_flight,
        )

    def outcome_of(self, message: Message) -> Outcome | None:
        """What became of a message here; None if this inbox never had it, as far as it can tell."""
        if self.custody is not None and (outcome := self.custody.outcome_of(message)) is not None:
            return outcome
        for waiting in self.messages():
            if waiting.seq == message.seq:
                return Outcome(self.name, Fate.IN_FLIGHT, "waits in the inbox")
        if not self.record.exact and not matches(self.pattern, message.topic):
            return None
        if (known := self.record.fate_of(message.seq)) is not None:
            fate, reason, at_ns = known
            return Outcome(self.name, fate, reason, at_ns)
        return None

    def messages(self) -> list[Message]:
        """Everything that waits here, in the order it would be taken; publishes that wait for room come last."""
        above = [message for level in self._levels if level > NORMAL for message in self._lanes[level]]
        below = [message for level in self._levels if level < NORMAL for message in self._lanes[level]]
        return [*above, *self.queue, *below, *(parked.message for parked in self.parked)]

    def unfinished(self) -> list[Message]:
        """Everything that has no fate yet."""
        held = [] if self.custody is None else self.custody.messages()
        return [*held, *self.messages()]

    # The end

    def close(self) -> None:
        """Take no more; what is in can still be taken. Publishers that wait are let go, their fate recorded."""
        if self.closed:
            return
        self.closed = True
        if self._admission is not None:
            self._admission.cancel()
            self._admission = None
        while self.parked:
            parked = self.parked.popleft()
            self.settle(parked.message, Fate.DROPPED, "the subscriber left while its publisher waited for room")
            parked.entered.set_result(None)
        self._measure()
        while self.sleepers:
            self.wake()

    def discard(self) -> list[Message]:
        """Take out everything that waits, let waiting publishers go on; the caller says what becomes of it."""
        left = self.messages()
        while self.parked:
            self.parked.popleft().entered.set_result(None)
        self.queue.clear()
        self._lanes.clear()
        self._levels = []
        self.in_lanes = 0
        self.marked = 0
        self._measure()
        return left
