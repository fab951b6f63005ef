"""Observation: the counters and the history of the traffic of one bus."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from trunkline.brokers.broker import Broker
from trunkline.bus.lifecycle import BusState
from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.plain_run import NO_RUN, PlainRun, RunSampling
from trunkline.memory.metrics import MemoryMetrics
from trunkline.message import ELIDED, Message
from trunkline.settings import History
from trunkline.topic import matches

MAX_REFUSALS = 10_000
MAX_SENDERS = 10_000
OTHERS = "…"


class MessageHistory:
    """The last messages the bus accepted, oldest first. Large payloads are left out: `encoding` is "elided" then.

    Messages of a run are stored as columns, and built on access.
    """

    def __init__(self, limits: History) -> None:
        self.max_payload_bytes = limits.max_payload_bytes
        self.max_messages = limits.max_messages if limits.enabled else 0
        self._entries: deque[Message | PlainRun] = deque(maxlen=self.max_messages)
        self._in_runs = 0
        """The maximum number of messages in all runs but the last: a full deque drops its oldest runs."""
        self._last = NO_RUN
        self.add: Callable[[Message], None] = self._entries.append
        """Adds a message that is known to be small."""
        self.add_many: Callable[[Iterable[Message]], None] = self._entries.extend

    def __len__(self) -> int:
        return min(sum(map(_size, self._entries)), self.max_messages)

    def remember(self, message: Message) -> None:
        if len(message.payload) > self.max_payload_bytes:
            message = msgspec.structs.replace(message, payload=b"", encoding=ELIDED)
        self.add(message)

    def add_run(self, run: PlainRun) -> None:
        """Add a run. The bus appends to it until something else is added."""
        self._in_runs += len(self._last)
        self._last = run
        if self._in_runs > self.max_messages:
            if len(self._entries) == self.max_messages:
                # Only a full deque can have dropped runs, and it stays full until it is shortened below.
                self._in_runs = sum(len(entry) for entry in self._entries if isinstance(entry, PlainRun))
            while self._entries and self._in_runs - (in_run := _in_run(self._entries[0])) >= self.max_messages:
                self._in_runs -= in_run
                self._entries.popleft()
        self._entries.append(run)

    def last(self, limit: int | None = None, pattern: str | None = None) -> list[Message]:
        messages = [message for entry in self._entries for message in _messages(entry)]
        found = [
            message
            for message in messages[max(0, len(messages) - self.max_messages) :]
            if pattern is None or matches(pattern, message.topic)
        ]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def find(self, message_id: str) -> Message | None:
        for entry in reversed(self._entries):
            if isinstance(entry, PlainRun):
                if message_id in entry.ids:
                    return entry.messages[entry.ids.index(message_id)]
            elif entry.id == message_id:
                return entry
        return None


def _messages(entry: Message | PlainRun) -> Sequence[Message]:
    return entry.messages if isinstance(entry, PlainRun) else (entry,)


def _in_run(entry: Message | PlainRun) -> int:
    return len(entry) if isinstance(entry, PlainRun) else 0


def _size(entry: Message | PlainRun) -> int:
    return len(entry) if isinstance(entry, PlainRun) else 1


class Refusals:
    """Refused messages: counted by kind of error; the latest are kept by message id."""

    def __init__(self) -> None:
        self.by_error: Counter[str] = Counter()
        self._latest: OrderedDict[str, Outcome] = OrderedDict()

    @property
    def total(self) -> int:
        return self.by_error.total()

    def add(self, message_id: str, who: str, error: BaseException, at_ns: int) -> None:
        self.by_error[type(error).__name__] += 1
        self._latest.pop(message_id, None)
        self._latest[message_id] = Outcome(who, Fate.REFUSED, f"{type(error).__name__}: {error}", at_ns)
        if len(self._latest) > MAX_REFUSALS:
            self._latest.popitem(last=False)

    def find(self, message_id: str) -> Outcome | None:
        return self._latest.get(message_id)


class Senders:
    """Counts messages by sender. Those of the bus itself are the rest of the total, so they need not be counted."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._others: Counter[str] = Counter()

    def add(self, sender: str, count: int = 1) -> None:
        if sender == self._own:
            return
        if sender not in self._others and len(self._others) >= MAX_SENDERS:
            sender = OTHERS
        self._others[sender] += count

    def counts(self, total: int) -> dict[str, int]:
        own = total - self._others.total()
        return {**({self._own: own} if own else {}), **self._others}


class Traffic:
    """The counters and the history of a bus. Updated only here, and by the inlined copy in `Bus.publish`."""

    def __init__(self, name: str, limits: History, broker: Broker) -> None:
        self.total = 0
        """The number of accepted messages, without those of `run`."""
        self.unrouted = 0
        self.run = NO_RUN
        """The run that the bus may append to.

        It ends when anything else is published, and when the counters are read.
        """
        self.sampling: RunSampling | None = None
        """Decides which messages of a run start a trace, if only a share does."""
        self.history = MessageHistory(limits)
        self.senders = Senders(name)
        self.refusals = Refusals()
        self._name = name
        self._world = broker.world
        self._served = broker.served

    def accept(self, messages: Sequence[Message], *, routed: bool, alike: bool) -> None:
        """Count messages that their lane has taken. With `alike`, all are small and were sent by this bus."""
        if self.run is not NO_RUN:
            self.end_run()
        self.total += len(messages)
        if not routed:
            self.unrouted += len(messages)
        if alike:
            self.history.add_many(messages)
            return
        for message in messages:
            self.history.remember(message)
            self.senders.add(message.sender)

    def accept_run(self, run: PlainRun, *, routed: bool) -> None:
        """As `accept`, for the small messages of a closed run of this bus."""
        if self.run is not NO_RUN:
            self.end_run()
        self.total += len(run)
        if not routed:
            self.unrouted += len(run)
        self.history.add_run(run)

    def accept_one(self, message: Message, *, routed: bool) -> None:
        """As `accept`, for one small message."""
        if self.run is not NO_RUN:
            self.end_run()
        self.total += 1
        if not routed:
            self.unrouted += 1
        self.history.add(message)
        if message.sender != self._name:
            self.senders.add(message.sender)

    def begin_run(self, run: PlainRun) -> None:
        """Start a run on a lane. The bus appends messages to it."""
        self.end_run()
        run.sampling = self.sampling
        self.run = run
        self.history.add_run(run)

    def end_run(self) -> None:
        """End the run and count its messages. The bus no longer appends to it."""
        run, self.run = self.run, NO_RUN
        self.total += len(run)
        if not run.routed:
            self.unrouted += len(run)

    def fail(self, error: BaseException) -> None:
        """Count a message that was accepted, but whose publisher got an error because one subscriber had no room."""
        self.refusals.by_error[type(error).__name__] += 1

    def refuse(self, message: Message, error: BaseException) -> None:
        """Count a refused message. Its publisher gets an error."""
        now_ns = self._world.time_ns()
        self.refusals.add(message.id, self._name, error, now_ns)
        if message.seq and (ledger := self._served.ledger) is not None:
            ledger.refused(message, self._name, f"{type(error).__name__}: {error}", now_ns)


class Lazy(Mapping[str, int]):
    """Counts that are computed on first access, and then do not change."""

    def __init__(self, gather: Callable[[], dict[str, int]]) -> None:
        self._gather = gather
        self._counts: dict[str, int] | None = None

    def _now(self) -> dict[str, int]:
        if self._counts is None:
            self._counts = self._gather()
        return self._counts

    def __getitem__(self, key: str) -> int:
        return self._now()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return repr(self._now())


class Stats(msgspec.Struct, frozen=True):
    """Counters of a bus.

    Counters of this bus: `total_messages` were accepted. For `total_refused` messages the publisher got an error; this
    includes accepted messages for which only some subscribers had no room. `total_failed` adds the dead letters in
    `account` to these. `unrouted` messages had no subscriber. Counters of this process: `account` sums up its
    subscribers, and `pending` of their deliveries are in flight. `per_topic` counts what all buses of this process
    published through the same broker or connection. `per_topic` and `per_sender` are computed on first access. `memory`
    has the ends of channels in shared memory that were opened with this bus.
    """

    total_messages: int
    total_failed: int
    total_refused: int
    unrouted: int
    pending: int
    dead_letters: int
    orphans: int
    open_requests: int
    subscribers: int
    account: Account
    per_topic: Mapping[str, int]
    per_sender: Mapping[str, int]
    state: BusState
    memory: MemoryMetrics = MemoryMetrics()
