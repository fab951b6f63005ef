"""The interface between the shared part of a remote broker and an adapter.

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
from trunkline.errors import InvalidPayload, Refused
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.brokers.remote.outbox import SentBatch

ENDLESS = -1
NEVER_ALONE = 2**62
ArrivedBody = memoryview | SharedBody
"""The columns of a batch, or a message whose payload is in shared memory."""


class TopicTerms(Protocol):
    """The properties of a topic that a publisher needs."""

    @property
    def topic(self) -> str: ...
    @property
    def heard(self) -> bool:
        """Whether the topic has subscribers."""

    @property
    def confirm(self) -> bool:
        """Whether a publish waits for the broker's confirmation."""

    @property
    def durable(self) -> bool:
        """Whether the broker stores the messages. If so, an unconfirmed batch is sent again."""

    @property
    def channel(self) -> str | None: ...
    @property
    def schema(self) -> str | None:
        """The schema, or None. The adapter checks messages against it before they are sent."""

    @property
    def full(self) -> Sequence[tuple[str, int]]:
        """Subscribers that publishers wait for now, and how often each has become full."""


class PublishLimits(Protocol):
    """How much a publisher may send without confirmation, and the largest frame that the broker accepts."""

    @property
    def window(self) -> int:
        """The most unconfirmed messages on one topic."""

    @property
    def window_bytes(self) -> int: ...
    @property
    def max_frame_bytes(self) -> int: ...


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a subscription."""

    subscription: int
    """Its number on this connection. Every batch for the subscription carries it."""
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
        """The name under which the broker keeps the fates and dead letters. Empty if it is the requested name."""

    @property
    def report_s(self) -> float | None:
        """How long fates may be collected before they are reported; None if the broker does not use reports."""


class Origin(Protocol):
    """Messages of one subscription and topic, with their position among the messages of their publisher."""

    @property
    def subscription(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def origin(self) -> int:
        """The publisher; 0 if positions are not counted."""

    @property
    def position(self) -> int:
        """How many messages of this priority the publisher had published on the topic before these."""

    @property
    def priority(self) -> int: ...


class Arrival(Origin, Protocol):
    """The head of a batch that arrived."""

    @property
    def first(self) -> int:
        """The number of the first message. The others follow without a gap, unless `seqs` lists the numbers."""

    @property
    def seqs(self) -> list[int] | None: ...


class DropNotice(Origin, Protocol):
    """Messages that the broker dropped and will not deliver."""

    @property
    def ranges(self) -> list[tuple[int, int]]: ...
    @property
    def reason(self) -> str: ...


class Rejection(msgspec.Struct, frozen=True):
    """A message of a batch, or a whole batch, that the broker did not accept unchanged."""

    index: int
    """The index of the message; -1 for the whole batch."""
    error: Callable[[], Refused] | None
    """The error for the publisher. None if the message became a dead letter, which is no error for the publisher."""
    takes_number: bool = True
    """Whether the message has one of the numbers of its batch."""
    seq: int | None = None
    """Its own number, outside the numbers of its batch."""


class FateRange(NamedTuple):
    """The fate of consecutive messages of a subscription."""

    fate: Fate
    first: int
    last: int
    reason: str


class DeadLetterKeeper(Protocol):
    """Receives events about the dead letters that the broker keeps."""

    keeps_unreadable: bool
    """Whether stored data that is not a batch of messages becomes a dead letter."""

    def handled(self, inbox: Inbox, seq: int) -> None:
        """Called when a dead letter that was replayed here has its fate."""

    def returns(self, role: str) -> None:
        """Note that the broker redelivers the dead letters of this subscriber."""


class Shared(Protocol):
    """The shared part, as an adapter sees it. All methods are called in the thread of the event loop."""

    def connected(self, limits: PublishLimits) -> None:
        """Called when a connection is usable, for the first time or again.

        Opens the subscriptions, and sends unconfirmed batches again.
        """

    def disconnected(self) -> None:
        """Called when the connection has ended, and another one is being made."""

    def writable(self) -> None:
        """Called when the backlog has drained."""

    def deliver(self, head: Arrival, body: ArrivedBody) -> None:
        """Process a batch that arrived. An idle worker that waited for it runs at once."""

    def deliver_first(self, head: Arrival, body: ArrivedBody) -> None:
        """Like `deliver`, if more batches may have arrived at the same time. Workers run when `arrived` is called."""

    def arrived(self) -> None: ...

    def dropped(self, notice: DropNotice) -> None: ...

    def losing(self, subscription: int, reason: str) -> None:
        """Called when messages of a plain subscription are being lost. The next gaps in it have this reason."""

    def unreadable(self, head: Arrival, body: memoryview, error: InvalidPayload) -> None:
        """Called when stored data for a subscription is not a batch of messages."""

    def report_now(self, subscription: int) -> None:
        """Called when the broker requests the fates of the messages that this subscription received."""

    def topic_changed(self, terms: TopicTerms) -> None: ...

    def taken(self, runs: Sequence[tuple[int, int, int]], rejections: Mapping[int, list[Rejection]]) -> None:
        """Called when the broker has accepted batches.

        Each run is the first and the last batch number, and the number of the first message in it.
        """

    def give_way(self) -> None:
        """Urgent messages pass through the broker: let other processes run after each of the next large batches."""

    def unserved(self, batch: int) -> Callable[[Sequence[str]], None]:
        """Called when nobody can answer the requests of a batch that is not `taken` yet.

        Returns the function that fails them. Its argument are similar topics with subscribers.
        """

    def rejected(self, batch: int, error: Callable[[], Refused]) -> None:
        """Called when the broker rejected a whole batch."""


class Adapter(Protocol):
    """One connection to a remote broker. No method blocks. Data that is sent without a connection is discarded."""

    name: str
    """The kind of broker, for error texts."""
    url: str
    live: bool
    """Whether the broker can be used now."""
    connect_s: float
    """How long callers wait for a broker that does not answer."""
    max_unsent_bytes: int
    max_inbox_bytes: int
    """How many bytes may wait in one inbox. A single larger message is still accepted."""
    malformed: int
    """Frames or batches that could not be read."""
    alone_bytes: int
    """Messages of at least this size are sent alone on the current connection; NEVER_ALONE if none are."""

    names_full: bool
    """Whether the terms of a topic name the subscribers whose inboxes are full."""
    checks_alone: bool
    """Whether messages are checked against schemas only in this process."""

    @property
    def run(self) -> str:
        """Identifies a run of the broker. A new run numbers its messages from the beginning."""

    @property
    def keeps_dead_letters(self) -> bool: ...

    @property
    def backlog(self) -> int:
        """Bytes that were passed to `send` and have not left this process."""

    def attach(self, shared: Shared) -> None:
        """Set the receiver of events. Called once."""

    def lacks(self, feature: Feature) -> bool:
        """Whether the broker is known to lack the feature."""

    def open(self) -> None:
        """Start connecting, unless that has begun already. Never waits."""

    async def ready(self) -> object:
        """Return when the connection is live.

        Raises HubUnavailable, or the error with which the broker refuses this client.
        """

    async def aclose(self) -> None: ...

    # Publishing

    async def inquire(self, topic: str) -> None:
        """Request the terms of a topic. Returns when `topic_changed` was called for it. Raises Refused."""

    def inquire_soon(self, topic: str) -> None:
        """Like `inquire`, on a live connection and without waiting."""

    async def check(self, terms: TopicTerms, messages: Sequence[Message]) -> tuple[list[Message], Failures]:
        """The messages that match the schema, and the others with their errors."""

    def encode(self, batch: SentBatch) -> bytes: ...

    def send(self, batch: SentBatch) -> None:
        """Queue an encoded batch after the earlier ones. `flush` sends it."""

    def flush(self) -> None:
        """Send the queued batches."""

    def send_now(self, batch: SentBatch) -> None:
        """As `send` and `flush`."""

    def withdraw(self, number: int, reason: str) -> None:
        """Withdraw a batch whose publisher no longer waits for room."""

    async def sync(self) -> int:
        """Return when the broker has everything that was sent before. Raises HubUnavailable."""

    # Subscribing

    def subscribe(self, request: SubscribeRequest, done: Callable[[SubscriptionTerms | Exception], None]) -> None:
        """Open a subscription on a live connection. `done` is called before any of its messages is delivered.

        `done` receives HubUnavailable if the connection ends: the subscription is then opened on the next one. It
        receives another error if the broker refuses.
        """

    def unsubscribe(self, subscription: int, pattern: str) -> None: ...

    def stop(self, subscription: int) -> None:
        """Deliver no new messages to this member. It can still acknowledge those it has."""

    def credit(self, subscription: int, messages: int, size: int) -> None:
        """Allow the broker to deliver this many more messages and bytes."""

    def acknowledge(self, subscription: int, ranges: list[tuple[int, int]]) -> None: ...

    def settle(
        self, subscription: int, seq: int, fate: Fate | None, reason: str, letter: DeadLetter | None = None
    ) -> None:
        """Report a message that a member did not deliver: its fate, or None if another member is to get it."""

    def report(
        self, subscription: int, ranges: Sequence[FateRange], letters: Sequence[DeadLetter], *, asked: bool
    ) -> None:
        """Report the fates of messages of a plain subscription. `asked`: the report answers `report_now`."""

    def link(self, pattern: str, topic: str) -> None: ...

    def unlink(self, pattern: str, topic: str) -> None: ...
