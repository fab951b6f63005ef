"""The inbox: one subscriber's bounded queue, in order of priority, with a named policy for when it is full.

Everything here runs in one event loop thread. The publisher's fast path writes `queue` directly: see `room`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from trunkline.delivery.books import Books
from trunkline.delivery.eager import EVERYONE, NEVER, EagerSteps, Sleeper
from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.parking import Parked, Waiting
from trunkline.delivery.plain_run import PlainRun, RunReader
from trunkline.delivery.subscriber import Overflow, Subscriber
from trunkline.delivery.unopened import AdmittedMessage, Unopened, UnopenedBatch, UnopenedQueue
from trunkline.errors import Congested, InboxFull
from trunkline.message import NORMAL, Message
from trunkline.topic import matches

if TYPE_CHECKING:
    from trunkline.delivery.custody import Custody
    from trunkline.delivery.dead_letters import Attempt

ADMIT_ROOM: Final = 64
ADMIT_AFTER_S: Final = 0.05


Gate = Callable[[Message], str | None]
"""Returns why a message is not for this subscriber (a filter, a duplicate), or None to accept it."""


class Inbox(Subscriber[Message]):
    """Messages waiting for one subscriber: highest priority first, first in first out within a priority."""

    __slots__ = (
        "_admission",
        "abandoned",
        "back",
        "batch_readers",
        "custody",
        "delayed",
        "eager",
        "full",
        "gate",
        "gone",
        "held",
        "idle",
        "leave",
        "marked",
        "max_parked",
        "needs_pull",
        "parked",
        "queue",
        "reader",
        "readers",
        "refill",
        "refill_at",
        "role",
        "room",
        "run",
        "sleepers",
        "successor_of",
        "told",
        "unopened",
    )

    # Messages that return for their next attempt may exceed the capacity: new ones do not evict them.
    one_for_one = True
    parking: ClassVar[type[Parked]] = Parked
    """The class of publishes that wait for room."""

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
        super().__init__(name, pattern, time_ns, capacity, overflow, Books())
        self.role = name
        """The name in fates and dead letters: its own, or that of the durable subscription that it shares."""
        self.max_parked = max_parked
        self.gate: Gate | None = None
        self.full: Callable[[Message], Overflow] | None = None
        """Returns the policy for a message that does not fit. It replaces `overflow`."""
        self.queue = self._lanes.normal
        """The lane of normal priority, for the fast paths."""
        self.room = capacity
        """Publishers may append to `queue` directly while it is shorter than this; otherwise they must call `offer`. 0
        while publishers wait, while some messages here are unopened, and when the inbox is closed."""
        self.marked = 0
        """The number of waiting messages that have a ttl or require an acknowledgement."""
        self.needs_pull = False
        """Whether the next message must be taken with `pull`: other lanes are in use, messages are marked, publishers
        wait, or there are several readers."""
        # A list: an empty deque takes 760 bytes, and sleepers are few.
        self.sleepers: list[asyncio.Future[None]] = []
        self.eager: EagerSteps = NEVER
        self.told = False
        """Whether an idle worker continues at once for any message, as an actor does, and not only for a request."""
        self.parked: list[Parked] = []
        self._admission: asyncio.TimerHandle | None = None
        self.readers = 0
        """The number of tasks that iterate over its stream. If there are several, none of them may record a range as
        delivered."""
        self.batch_readers = 0
        """The number of tasks that iterate over batches or payloads. For them, plain messages may stay unopened."""
        self.unopened: UnopenedQueue | None = None
        """Messages that arrived as columns. Taking a message opens the oldest batch.

        Changing the order of messages requires opening all of them.
        """
        self.run: PlainRun | None = None
        """The run that its bus is appending to. Code that inspects the inbox closes it first: then the run is counted,
        and is the last entry of `unopened`."""
        self.reader: RunReader | None = None
        """The oldest part of a run, if an actor takes it as payloads. It comes before `unopened`."""
        self.held = 0
        """The number of messages that were handed out and are not yet acknowledged."""
        self.delayed = 0
        """The number of messages that wait for their next attempt. They keep their place in the capacity."""
        self.abandoned = False
        """Whether its stream was garbage-collected without being closed. Code that notices this removes the inbox."""
        self.gone = False
        """Whether the subscriber has left."""
        self.leave: Callable[[Inbox], None] | None = None
        self.successor_of: Callable[[Message], Inbox | None] | None = None
        """Returns the member of its group that takes over a message. None without a group."""
        self.back: Callable[[Message, list[Attempt]], None] | None = None
        """Called with a message that has no successor: returns it to its journal. None: such a message is dropped."""
        self.refill: Callable[[], None] | None = None
        """Requests more messages from a source that sends them on request. Called when a task waits for one, and when
        no more than `refill_at` of normal priority are left."""
        self.refill_at = -1
        self.custody: Custody | None = None
        self.idle: asyncio.Event | None = None
        """Not None if a task waits until nothing is in flight."""

    # Input

    def offer(self, message: Message) -> Waiting | None:
        """Take the message, or record its fate, or return a Parked whose `wait` the publisher must await.

        Raises InboxFull (policy `reject`) or Congested (too many publishers wait). In these cases the fate is recorded,
        too.
        """
        self.books.accepted += 1
        if (
            len(self.queue) < self.room
            and message.priority == NORMAL
            and message.ttl_s is None
            and not message.requires_ack
            and self.gate is None
        ):
            # A plain message: the same three steps as in the publishers' fast path.
            self.queue.append(message)
            if self.sleepers:
                self.wake()
            return None
        if self.closed or self.abandoned:
            self.settle(message, Fate.DROPPED, "the subscriber has left")
            if self.abandoned and self.leave is not None:
                self.leave(self)
            return None
        if self.gate is not None and (why := self.gate(message)) is not None:
            self.settle(message, Fate.FILTERED, why)
            return None
        if self.free > 0 and not self.parked:
            self._put(message)
            return None
        return self._overflow(self.overflow if self.full is None else self.full(message), message)

    @property
    def depth(self) -> int:
        if self.run is not None:
            self.run.close()
        unopened, reader = self.unopened, self.reader
        waiting = len(self.queue) + self._lanes.elsewhere + (0 if unopened is None else unopened.count)
        return waiting if reader is None else waiting + reader.left

    @property
    def waiting_since_ns(self) -> int:
        """When the next message to be taken was published; 0 if none waits."""
        first = next(iter(self._lanes), None)
        if first is not None:
            return first.timestamp_ns
        if self.run is not None:
            self.run.close()
        self.stop_reading()
        return 0 if self.unopened is None else self.unopened.since_ns

    @property
    def free(self) -> int:
        return self.capacity - self.depth - self.delayed

    @property
    def in_flight(self) -> int:
        return self.depth + len(self.parked) + self.held + self.delayed

    def _put(self, message: Message, *, front: bool = False) -> None:
        if message.priority < NORMAL or (message.priority == NORMAL and not front):
            # Unopened messages come before it.
            self.open_all()
        elif front:
            # It comes before the messages that are read as payloads.
            self.stop_reading()
        self._lanes.put(message, front=front)
        if self._is_marked(message):
            self.marked += 1
        self._measure()
        if self.sleepers:
            self.wake()

    def _put_last(self, message: Message) -> None:
        """Like `_put`, but a plain message that comes after unopened ones does not open them."""
        if self.unopened is None or not self.unopened.count or message.priority != NORMAL or self._is_marked(message):
            self._put(message)
            return
        self.unopened.put(AdmittedMessage(message))
        if self.sleepers:
            self.wake()

    def _measure(self) -> None:
        if self.run is not None:
            self.run.close()
        elsewhere = self._lanes.elsewhere
        self.needs_pull = bool(self.parked or elsewhere or self.marked or self.readers > 1)
        self.room = 0 if self.parked or self.closed or self.abandoned else self.capacity - elsewhere - self.delayed
        if self.reader is not None or (self.unopened is not None and self.unopened.count):
            self.room = 0

    def _wait_for_room(self, message: Message) -> Parked:
        if len(self.parked) >= self.max_parked:
            self.settle(message, Fate.DROPPED, f"congested: {len(self.parked)} publishes already wait for room")
            raise Congested(self.name, len(self.parked))
        self._count_waiting(1)
        parked = self.parking(self, message)
        self.parked.append(parked)
        self._measure()
        return parked

    def _enqueue(self, message: Message) -> None:
        # Messages are evicted in order, so the unopened ones are opened first.
        self.open_all()
        self._put(message)

    def _overfull(self) -> str | None:
        return f"the inbox is full ({self.capacity})" if self.free < 0 else None

    def _evict(self, message: Message, why: str) -> None:
        self._begin_to_lose(Overflow.DROP_OLDEST)
        self._unmark(message)
        self.settle(message, Fate.DROPPED, why)

    def _take_what_fits(self, policy: Overflow, message: Message) -> tuple[Message, str]:
        self._begin_to_lose(policy)
        word = "rejected" if policy is Overflow.REJECT else policy.value
        return message, f"{word}: the inbox is full ({self.capacity})"

    def _drop(self, message: Message, why: str) -> None:
        self.settle(message, Fate.DROPPED, why)

    def _refuse(self, message: Message, why: str) -> None:
        self._drop(message, why)
        raise InboxFull(self.name, self.capacity)

    # Output

    def pull(self) -> Message | None:
        """The next message, or None if there is none now. Expired messages get their fate and are skipped.

        The caller must account for the message: with `count_delivered`, or with `held` and later a fate.
        """
        while True:
            message = self._lanes.pop()
            if message is None:
                if not self.room and self.open():
                    continue
                if self.parked:
                    self.admit()
                    if self.depth:
                        continue
                return None
            self._unmark(message)
            if self.parked:
                self.make_room()
            if len(self.queue) <= self.refill_at and self.refill is not None:
                self.refill()
            if message.ttl_s is None or not self.expire(message):
                return message

    @staticmethod
    def _is_marked(message: Message) -> bool:
        return message.ttl_s is not None or message.requires_ack

    def _unmark(self, message: Message) -> None:
        if self._is_marked(message):
            self.marked -= 1
        if self.needs_pull:
            self._measure()

    def expire(self, message: Message) -> bool:
        """Whether the message is past its ttl. If so, its fate is recorded."""
        expires_ns = message.expires_ns
        if expires_ns is None or self.time_ns() < expires_ns:
            return False
        self.settle(message, Fate.EXPIRED, f"its ttl of {message.ttl_s:g} s had passed when it was taken")
        return True

    # Unopened messages

    def takes_run(self) -> int:
        """The maximum length of a run that begins now; 0 if none can begin.

        A run must not require waking a sleeper, or comparing its messages with others of different priority.
        """
        if self.sleepers or self.parked or self.closed or self.abandoned:
            return 0
        if self._lanes.elsewhere or self.refill is not None or self.gate is not None:
            return 0
        return self.free

    def begin_run(self, run: PlainRun) -> None:
        self.run = run
        self.room = 0

    def end_run(self, part: Unopened) -> None:
        """Take a closed run, whose messages have numbers."""
        self.run = None
        self.books.accepted += part.count
        if self.unopened is None:
            self.unopened = UnopenedQueue()
        self.unopened.put(part)

    def keep(self, batch: UnopenedBatch) -> bool:
        """Take plain messages unopened, if there is room for all of them and a reader takes batches. False if nothing
        was taken.
        """
        if not self.batch_readers or self.gate is not None or self._lanes.elsewhere or batch.count > self.free:
            return False
        if self.closed or self.abandoned or self.parked:
            return False
        if self.unopened is None:
            self.unopened = UnopenedQueue()
        self.books.accepted += batch.count
        self.unopened.put(batch)
        self._measure()
        return True

    def read_run(self, most: int, content_type: str) -> RunReader | None:
        """Take up to `most` messages as payloads, if those of a run are next. The caller counts and holds each, and
        calls `stop_reading` at the end.
        """
        if self.run is not None:
            self.run.close()
        if self.unopened is None or len(self._lanes) or (part := self.unopened.take_run(most, content_type)) is None:
            return None
        self.reader = RunReader(part)
        return self.reader

    def stop_reading(self) -> None:
        """End `reader`: messages that were not taken are unopened again."""
        reader, self.reader = self.reader, None
        if reader is not None:
            if self.unopened is not None and (rest := reader.stop()) is not None:
                self.unopened.put_back(rest)
            self._measure()

    def open(self) -> bool:
        """Build the messages of the oldest unopened batch, and append them to `queue`. False if there is none."""
        if self.run is not None:
            self.run.close()
        self.stop_reading()
        if self.unopened is None or not self.unopened.count:
            return False
        self.queue.extend(self.unopened.take_first())
        self._measure()
        return True

    def open_all(self) -> None:
        while (self.run is not None or self.unopened is not None) and self.open():
            pass

    def take_unopened(self, most: int) -> list[Unopened]:
        """Take up to `most` unopened messages, if they are next. They count as delivered."""
        if self.run is not None:
            self.run.close()
        if self.unopened is None or not self.unopened.count or len(self._lanes):
            return []
        taken = self.unopened.take(most)
        self._measure()
        for batch in taken:
            self.count_delivered_many(batch.first, batch.last, batch.count)
        if self.refill is not None:
            self.refill()
        return taken

    def count_delivered_many(self, first: int, last: int, count: int) -> None:
        """Count messages that were taken together, with ascending numbers."""
        now_ns = self.time_ns()
        self.books.deliver(first, last, count, now_ns)
        if self.ledger is not None:
            self.ledger.delivered(self, first, last, count, now_ns)
        if self.idle is not None:
            self.check_idle()

    def count_delivered(self, message: Message) -> None:
        now_ns = self.time_ns()
        self.books.deliver_one(message.seq, now_ns)
        if self.ledger is not None:
            self.ledger.delivered_one(self, message, now_ns)
        if self.idle is not None:
            self.check_idle()

    def count_delivered_each(self, messages: Sequence[Message]) -> None:
        """Count messages that were acknowledged together, with any numbers."""
        now_ns = self.time_ns()
        numbers = [message.seq for message in messages]
        self.books.deliver_each(numbers, now_ns)
        if self.ledger is not None:
            self.ledger.delivered_each(self, messages, now_ns)
        if self.idle is not None:
            self.check_idle()

    def read_by(self, change: int) -> None:
        """Count a task that starts (1) or stops (-1) iterating over the stream."""
        self.readers += change
        self._measure()

    async def sleep(self, *, eager: bool = False) -> None:
        """Return at the next wake-up: a message arrived or was acknowledged, or the inbox was closed.

        An `eager` sleeper may continue inside the call that has a message for it.
        """
        loop = asyncio.get_running_loop()
        sleeper = self.fall_asleep(Sleeper(loop=loop) if eager else loop.create_future())
        try:
            await sleeper
        except asyncio.CancelledError:
            self.disturbed(sleeper)
            raise

    def fall_asleep(self, sleeper: asyncio.Future[None]) -> asyncio.Future[None]:
        """Register a sleeper for a wake-up. The caller must await it, and call `disturbed` if that is cancelled."""
        if self.idle is not None:
            self.check_idle()
        self.sleepers.append(sleeper)
        if self.refill is not None:
            # After the sleeper is registered: the requested messages may arrive at once.
            self.refill()
        return sleeper

    def disturbed(self, sleeper: asyncio.Future[None]) -> None:
        if not sleeper.cancelled():
            # Woken and cancelled in the same iteration: pass the wake-up on, or another sleeper misses a message.
            self.wake()
        elif sleeper in self.sleepers:
            self.sleepers.remove(sleeper)

    def check_idle(self) -> None:
        """Wake the tasks in `quiet` if nothing is in flight."""
        if self.idle is not None and not self.in_flight:
            self.idle.set()

    async def quiet(self) -> None:
        """Return when nothing is in flight here."""
        while self.in_flight:
            if self.idle is None or self.idle.is_set():
                self.idle = asyncio.Event()
            await self.idle.wait()

    def wake(self) -> None:
        if (wanted := self.eager.collecting) and (self.told or wanted == EVERYONE):
            self.eager.ready.append(self)
            return
        while self.sleepers:
            sleeper = self.sleepers.pop(0)
            if not sleeper.done():
                sleeper.set_result(None)
                return

    def wake_now(self) -> None:
        """Like `wake`, but an eager sleeper continues at once."""
        while self.sleepers:
            sleeper = self.sleepers.pop(0)
            if not sleeper.done():
                if isinstance(sleeper, Sleeper):
                    sleeper.step()
                else:
                    sleeper.set_result(None)
                return

    # Publishers that wait

    @property
    def elsewhere(self) -> int:
        """The number of waiting messages whose priority is not normal."""
        return self._lanes.elsewhere

    def make_room(self) -> None:
        # One wake-up admits many messages. But no publisher waits longer than ADMIT_AFTER_S while there is room.
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
            parked = self.parked.pop(0)
            parked.entered.set_result(None)
            self._put_last(parked.message)
        self._measure()

    def take_over_parked(self, parked: Parked) -> None:
        """Take over a publish that waited at another member of the group. It waits here, or enters."""
        self.books.accepted += 1
        parked.inbox = self
        self.parked.append(parked)
        self.admit()

    def unpark(self, parked: Parked, why: str, fate: Fate = Fate.DROPPED) -> None:
        """Remove a publish that waits for room, and record its fate. Does nothing if its message has entered."""
        if not parked.entered.done():
            parked.entered.cancel()
            self.parked.remove(parked)
            self.settle(parked.message, fate, why)
            self._measure()

    # Returned messages

    def return_to_front(self, message: Message) -> None:
        """Put a message that was handed out back at the front."""
        self._put(message, front=True)

    def readmit(self, message: Message) -> None:
        """Take a message that was accepted before, here or by another member. The gate does not check it again."""
        self.books.accepted += 1
        self._put(message)

    def pass_on(self, message: Message) -> bool:
        """Pass a message on to another member of the group, or return it to its journal. False if neither is possible.

        The message then counts in the books of the other member, and no longer in these.
        """
        successor = None if self.successor_of is None else self.successor_of(message)
        if self.custody is None:
            return False
        if successor is not None and successor.custody is not None:
            self.books.accepted -= 1
            successor.books.accepted += 1
            story = self.custody.hand_over(message.seq)
            successor.custody.take_over(message.seq, story)
            if self.ledger is not None:
                self.ledger.passed_on(self, successor, message, story)
            successor.return_to_front(message)
        elif self.back is not None and self.gone:
            self.books.accepted -= 1
            self.back(message, self.custody.hand_over(message.seq))
        else:
            return False
        self._measure()
        self.check_idle()
        if self.parked:
            self.admit()
        if self.sleepers:
            # The sleepers wait for messages that may return. This may have been the last one.
            self.wake()
        return True

    def delay(self) -> None:
        """Count a message that was handed out as waiting for its next attempt. It keeps its place in the capacity."""
        self.delayed += 1
        self._measure()

    # Fates

    def settle(self, message: Message, fate: Fate, reason: str) -> None:
        """Record a fate other than delivery."""
        now_ns = self.time_ns()
        self.books.end(message.seq, message.seq, fate, reason, now_ns)
        if self.ledger is not None:
            self.ledger.settled(self, message, fate, reason, now_ns)
        if self.custody is not None:
            self.custody.forget(message.seq)
        if self.idle is not None:
            self.check_idle()

    def account(self) -> Account:
        return self.books.account(self.in_flight)

    def outcome_of(self, message: Message) -> Outcome | None:
        """The outcome of a message here; None if there is no record that this inbox had it."""
        if self.custody is not None and (outcome := self.custody.outcome_of(message)) is not None:
            return outcome
        for waiting in self.messages():
            if waiting.seq == message.seq:
                return Outcome(self.role, Fate.IN_FLIGHT, "waits in the inbox")
        if not self.books.exact and not matches(self.pattern, message.topic):
            return None
        return self.books.outcome_of(self.role, message.seq)

    def messages(self) -> list[Message]:
        """Everything that waits here, in the order it would be taken; publishes that wait for room come last."""
        self.open_all()
        return [*self._lanes, *(parked.message for parked in self.parked)]

    def bytes_waiting(self) -> int:
        """The size of payloads and header fields of all messages that wait here, in bytes."""
        if self.run is not None:
            self.run.close()
        self.stop_reading()
        waiting = (*self._lanes, *(parked.message for parked in self.parked))
        size: int = sum([len(message.payload) + message.header_bytes for message in waiting])
        return size if self.unopened is None else size + self.unopened.size

    def unfinished(self) -> list[Message]:
        """Everything that has no fate yet."""
        held = [] if self.custody is None else self.custody.messages()
        return [*held, *self.messages()]

    # The end

    def close(self) -> None:
        """Accept no more messages; those that are in can still be taken. Waiting publishers are released: their
        messages go to another member of the group, or are dropped.
        """
        if self.closed:
            return
        if self.run is not None:
            self.run.close()
        self.closed = True
        if self._admission is not None:
            self._admission.cancel()
            self._admission = None
        while self.parked:
            parked = self.parked.pop(0)
            successor = None if self.successor_of is None else self.successor_of(parked.message)
            if successor is not None:
                self.books.accepted -= 1
                successor.take_over_parked(parked)
            else:
                self.settle(parked.message, Fate.DROPPED, "the subscriber left while its publisher waited for room")
                parked.entered.set_result(None)
        self._measure()
        while self.sleepers:
            self.wake()

    def discard(self) -> list[Message]:
        """Remove and return everything that waits, and release waiting publishers. The caller records the fates."""
        left = self.messages()
        while self.parked:
            self.parked.pop(0).entered.set_result(None)
        self._lanes.clear()
        self.marked = 0
        self._measure()
        return left
