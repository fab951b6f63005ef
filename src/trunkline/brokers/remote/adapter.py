"""What the shared part of a remote broker needs from an adapter, and what an adapter passes to it.

An adapter sends a batch, opens a subscription, and sends an acknowledgement. Everything else is shared: windows,
confirmation, resending, credit, gaps, reports. The values that an adapter passes in are protocols, so it can pass its
own messages without conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from trunkline.brokers.broker import Feature
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.pending import Failures
from trunkline.delivery.shared_body import SharedBody
from trunkline.errors import Refused
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.brokers.remote.outbox import SentBatch

ENDLESS = -1
NEVER_ALONE = 2**62
ArrivedBody = memoryview | SharedBody
"""The columns of a batch, or a message whose payload is in shared memory."""


class TopicTerms(Protocol):
    """What a publisher must know of a topic."""

    @property
    def topic(self) -> str: ...
    @property
    def heard(self) -> bool:
        """Whether anybody listens."""

    @property
    def confirm(self) -> bool:
        """Whether a publish waits for the broker's confirmation."""

    @property
    def durable(self) -> bool:
        """Whether the broker stores it: an unconfirmed batch is sent again."""

    @property
    def channel(self) -> str | None: ...
    @property
    def schema(self) -> str | None:
        """If there is one, the adapter checks messages against it before they are sent."""

    @property
    def full(self) -> Sequence[tuple[str, int]]:
        """Subscribers that publishers wait for now, and how often each has become full."""


class PublishLimits(Protocol):
    """How far the broker lets a publisher run ahead, and what it takes at once."""

    @property
    def window(self) -> int:
        """Messages on one topic that are not confirmed."""

    @property
    def window_bytes(self) -> int: ...
    @property
    def max_frame_bytes(self) -> int: ...


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as the broker is asked for it."""

    subscription: int
    """Its number on this connection: what arrives carries it."""
    pattern: str
    name: str
    credit: int
    """In messages, or ENDLESS."""
    credit_bytes: int = ENDLESS
    capacity: int = 10_000
    overflow: str = "block"
    group: str | None = None
    durable: bool = False
    start: int | str = "end"
    tap: bool = False
    hears: bool = True
    reports: bool = False
    one_of: str | None = None


class SubscriptionTerms(Protocol):
    """How the broker has opened a subscription."""

    @property
    def role(self) -> str:
        """The name under which the broker keeps its fates and dead letters; empty if that is the one asked for."""

    @property
    def report_s(self) -> float | None:
        """How long reports of fates may wait for others; None if the broker does not want them."""


class Origin(Protocol):
    """Messages of one subscription and topic, and where they are in what their publisher published."""

    @property
    def subscription(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def origin(self) -> int:
        """Who published them; 0 if their positions are not counted."""

    @property
    def position(self) -> int:
        """How many messages of this priority their publisher had published on the topic before."""

    @property
    def priority(self) -> int: ...


class Arrival(Origin, Protocol):
    """The head of a batch that arrived."""

    @property
    def first(self) -> int:
        """The number of its first message; the others follow without a gap, unless `seqs` lists them."""

    @property
    def seqs(self) -> list[int] | None: ...


class DropNotice(Origin, Protocol):
    """Messages that the broker dropped and will not deliver."""

    @property
    def ranges(self) -> list[tuple[int, int]]: ...
    @property
    def reason(self) -> str: ...


class Rejection(msgspec.Struct, frozen=True):
    """A message of a batch, or all of it, that was not taken as it was."""

    index: int
    """Which message; -1 for all of them."""
    error: Callable[[], Refused] | None
    """For its publisher. None: there is nothing to tell, for the message is a dead letter."""
    takes_number: bool = True
    """Whether it counts in the numbers of its batch."""
    seq: int | None = None
    """A number of its own, outside those of its batch."""


class FateRange(NamedTuple):
    """What became of consecutive messages of a subscription."""

    fate: Fate
    first: int
    last: int
    reason: str


class DeadLetterKeeper(Protocol):
    """Who knows the dead letters that the broker keeps."""

    def handled(self, inbox: Inbox, seq: int) -> None:
        """A dead letter that was replayed here has its fate."""

    def returns(self, role: str) -> None:
        """The broker redelivers the dead letters of this subscriber."""


class Shared(Protocol):
    """The shared half, as the adapter sees it. Everything is called in the event loop thread."""

    def connected(self, limits: PublishLimits) -> None:
        """A connection is usable, for the first time or again. Subscriptions are opened, batches sent again."""

    def disconnected(self) -> None:
        """The connection has ended; another one is being made."""

    def writable(self) -> None:
        """The backlog has drained."""

    def deliver(self, head: Arrival, body: ArrivedBody) -> None:
        """A batch has arrived. An idle worker that waited for it runs at once."""

    def deliver_first(self, head: Arrival, body: ArrivedBody) -> None:
        """As `deliver`, where more may have come at the same time: workers run when `arrived` is called."""

    def arrived(self) -> None: ...

    def dropped(self, notice: DropNotice) -> None: ...

    def report_now(self, subscription: int) -> None:
        """The broker asks for the fates of what this subscription got."""

    def topic_changed(self, terms: TopicTerms) -> None: ...

    def taken(self, runs: Sequence[tuple[int, int, int]], rejections: Mapping[int, list[Rejection]]) -> None:
        """The broker has these batches: first and last number, and the number of the first message in them."""

    def give_way(self) -> None:
        """Urgent messages come through the broker: let other processes run after each of the next large batches."""

    def unserved(self, batch: int, nearest: Sequence[str]) -> None:
        """Nobody got the requests of a batch that is not `taken` yet; `nearest` are similar topics with subscribers."""

    def rejected(self, batch: int, error: Callable[[], Refused]) -> None:
        """The broker did not take a batch at all."""


class Adapter(Protocol):
    """One connection to a broker elsewhere. Nothing here blocks. Without a connection, what is said is discarded."""

    name: str
    """What kind of broker it is, for error texts."""
    url: str
    live: bool
    """Whether the broker can be used now."""
    connect_s: float
    """How long anybody waits for a broker that does not answer."""
    max_unsent_bytes: int
    max_inbox_bytes: int
    """How many bytes may wait in one inbox. A single larger message still passes."""
    malformed: int
    """Frames or batches that could not be read."""
    alone_bytes: int
    """From this size on a message travels alone on the connection as it is now; NEVER_ALONE if none does."""

    names_full: bool
    """Whether the terms of a topic name the subscribers whose inboxes are full."""
    checks_alone: bool
    """Whether nobody after this process checks what is published against schemas."""

    @property
    def run(self) -> str:
        """Another one means that the broker numbers its messages from the beginning."""

    @property
    def keeps_dead_letters(self) -> bool: ...

    @property
    def backlog(self) -> int:
        """Bytes that were sent and have not left this process."""

    def attach(self, shared: Shared) -> None:
        """Called once: who is told of what arrives."""

    def lacks(self, feature: Feature) -> bool:
        """Whether the broker is known not to offer it."""

    def open(self) -> None:
        """Connect, if nobody does yet. Never waits."""

    async def ready(self) -> object:
        """Return when it is live; raises HubUnavailable, or why the broker refuses this client."""

    async def aclose(self) -> None: ...

    # Publishing

    async def inquire(self, topic: str) -> None:
        """Return when `topic_changed` was called for this topic; raises Refused."""

    def inquire_soon(self, topic: str) -> None:
        """The same on a live connection, without waiting."""

    async def check(self, terms: TopicTerms, messages: Sequence[Message]) -> tuple[list[Message], Failures]:
        """The messages that fit the schema, and those that do not, with why."""

    def encode(self, batch: SentBatch) -> bytes: ...

    def send(self, batch: SentBatch) -> None:
        """Put an encoded batch in line, after those before it. It leaves with `flush`."""

    def flush(self) -> None:
        """Send what is in line."""

    def withdraw(self, number: int, reason: str) -> None:
        """The publisher of a batch no longer waits for room."""

    async def sync(self) -> int:
        """Return when the broker has everything that was sent before; raises HubUnavailable."""

    # Subscribing

    def subscribe(self, request: SubscribeRequest, done: Callable[[SubscriptionTerms | Exception], None]) -> None:
        """On a live connection. Call `done` before anything of it is delivered.

        With HubUnavailable if the connection ends, which makes it up; with another error if the broker refuses.
        """

    def unsubscribe(self, subscription: int, pattern: str) -> None: ...

    def stop(self, subscription: int) -> None:
        """Deliver nothing new to this member; what it has can still be acknowledged."""

    def credit(self, subscription: int, messages: int, size: int) -> None:
        """So many messages, and bytes, more may be delivered."""

    def acknowledge(self, subscription: int, ranges: list[tuple[int, int]]) -> None: ...

    def settle(
        self, subscription: int, seq: int, fate: Fate | None, reason: str, letter: DeadLetter | None = None
    ) -> None:
        """A member did not deliver a message: its fate, or None if another member is to get it."""

    def report(
        self, subscription: int, ranges: Sequence[FateRange], letters: Sequence[DeadLetter], *, asked: bool
    ) -> None:
        """What became of messages of a plain subscription; `asked` answers `report_now`."""

    def link(self, pattern: str, topic: str) -> None: ...

    def unlink(self, pattern: str, topic: str) -> None: ...
