"""The interface between the shared part of all engines and the driver of one engine.

A driver sends and stores batches, opens subscriptions and consumers, acknowledges entries, and keeps a few keys. It
does not interpret messages: a batch is bytes. Everything else is shared: numbers, credit, leases, retries, fates, dead
letters, reconnection.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.batches import TRIMMED
from trunkline.brokers.engine.replica import DirectoryChanges
from trunkline.errors import Refused


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a subscription whose place the engine keeps."""

    subscription: int
    """Its number on this connection. Every entry for the subscription carries it."""
    role: str
    """The name of the place: the name of the group or of the durable subscription. Empty if only this subscriber uses
    it."""
    pattern: str
    durable: bool
    """Whether the place is kept when it has no subscribers. If not, it is removed some time after the last one left."""
    shared: bool
    """Whether several subscribers share the place."""
    start: int | str
    """As `Delivery.start`. A number is the number of an entry."""
    lease_s: float
    """An entry without `ack` or `touch` for this time is given to another subscriber."""


class ConsumerTerms(NamedTuple):
    """How a consumer was opened."""

    opened_ns: int
    """The time at the engine. Entries stored before it are older than the subscription."""


class Entry(NamedTuple):
    """An entry of the engine's store."""

    number: int
    """Numbers increase in the order in which entries were stored."""
    topic: str
    data: bytes
    stored_ns: int
    token: str = ""
    """Identifies the entry in an acknowledgement."""
    again: bool = False
    """Whether a subscriber of the same place may have received it before."""
    minor: int = 0
    """Distinguishes entries of other programs that have the same number."""


class Standing(enum.Enum):
    """The state of a message at a place, according to the engine. The value is the reason that `explain` gives."""

    ACKNOWLEDGED = "acknowledged at the engine"
    WAITING = "waits at the engine for its subscriber"
    REMOVED = TRIMMED
    REMOVED_HELD = "the engine removed it before it was acknowledged"
    FORGOTTEN = "the engine has removed it, and does not record whether it was acknowledged before"
    HANDED_OUT = "it was handed out, and the engine does not tell whether it was acknowledged"


class EngineEvents(Protocol):
    """The shared part, as a driver sees it. All methods are called in the thread of the event loop."""

    def sent(self, number: int) -> None:
        """The server has received all batches of `publish` up to this one."""

    def unheard(self, number: int) -> None:
        """The server has received a batch of `publish`, but the topic has no subscribers. Called before `sent`.

        For `publish_open`: one message of the batch had no subscribers. Some engines report this only if it `asks`.
        """

    def heard(self, topic: str) -> None:
        """A subscriber received a batch of `publish` on this topic. Only some engines report this."""

    def stored(self, number: int, entry: int, *, served: bool = True) -> None:
        """A batch of `store` is stored, by this call or by an earlier one.

        `served` is False if the batch `asks`, and its topic had neither subscribers nor places when it was stored.
        """

    def not_stored(self, number: int, error: Refused | None) -> None:
        """A batch of `store` was not stored.

        `error` is the reason. None: the engine could not store the batch now, and it is sent again.
        """

    def stored_open(self, number: int, refused: Mapping[int, Refused]) -> None:
        """All messages of a batch of `store_open` are stored, except the refused ones: their errors, by index."""

    def arrived(self, subscription: int, topic: str, data: bytes) -> None:
        """An engine message has arrived for a plain subscription."""

    def open_arrived(self, subscription: int, topic: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """A message on an open topic has arrived for a plain subscription."""

    def entry_arrived(self, subscription: int, entry: Entry) -> None:
        """An entry for a consumer has arrived, requested by `pull`."""

    def pull_ended(self, subscription: int) -> None:
        """The engine sends no more entries for the last `pull`."""

    def lost(self, subscription: int, count: int, why: str) -> None:
        """The client library has dropped `count` engine messages of a plain subscription.

        The messages in them are counted elsewhere, by the gap in their positions.
        """

    def trimmed(self, subscription: int, first: int, last: int, at_least: int, at_most: int) -> None:
        """The engine has removed entries with numbers from `first` to `last` before a consumer read them.

        Between `at_least` and `at_most` of them were for this consumer. If the two are equal, the range may include
        entries that were read. If they differ, it includes none.
        """

    def told(self, data: bytes) -> None:
        """Called when a note has arrived that another process, or this one, sent with `tell`."""

    def durable_changed(self) -> None:
        """`durable` has changed."""


class EngineDriver(Protocol):
    """One server or cluster. No method blocks. Methods without `async` discard what is sent without a connection."""

    name: str
    """The name of the broker: "nats", "redis"."""
    url: str
    """The URL without passwords, for error texts."""
    features: frozenset[Feature]
    """The features of the engine. Known after the first connection."""
    max_bytes: int
    """The largest message that the engine accepts."""
    opens: bool
    """Whether the driver implements `publish_open` and calls `open_arrived`. If so, plain subscriptions also receive
    open topics that match."""

    @property
    def durable(self) -> tuple[str, ...]:
        """Patterns of the topics that the engine stores. `durable_open` has those of open topics."""

    @property
    def durable_open(self) -> tuple[str, ...]:
        """Patterns of the open topics that the engine stores, for programs without Trunkline to read."""

    @property
    def why(self) -> str:
        """The last error that the client library reported; empty if there was none."""

    @property
    def run(self) -> str:
        """The identity of the store. A new store numbers its entries from the beginning."""

    @property
    def backlog(self) -> int:
        """Bytes that were passed to the driver and have not left this process."""

    def attach(self, events: EngineEvents, me: str) -> None:
        """Set the receiver of events. Called once. `me` is the address of this process for `tell`."""

    async def connect(self) -> None:
        """Connect once, and prepare the store if the settings need one.

        Raises EngineUnavailable if the server does not answer, and another TrunklineError if retrying cannot help.
        """

    async def ended(self) -> str:
        """Wait until the connection has ended, and return the reason."""

    async def aclose(self) -> None:
        """Send what is queued, and disconnect."""

    # Publishing

    def publish(self, number: int, topic: str, data: bytes) -> None:
        """Publish a batch to the current subscribers. Answered by `sent`, in order."""

    def publish_open(
        self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], *, asks: bool
    ) -> None:
        """Publish the messages of a batch, each for itself, for programs without Trunkline. Answered by `sent`.

        `asks`: they include requests.
        """

    def store(self, number: int, topic: str, data: bytes, name: str, *, asks: bool) -> None:
        """Store a batch, and publish it to the current subscribers.

        A name that was stored before is not stored again. `asks`: the batch has requests, so `stored` needs `served`.
        """

    def store_open(self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], name: str) -> None:
        """Store each message of a batch, and publish it. Answered by `stored_open`.

        The name of a message is `name` with its index. A message that was stored before is not stored again.
        """

    def flush(self) -> None:
        """Send queued messages now, not at the end of the turn."""

    async def sync(self) -> None:
        """Return when the server has received everything that was published before. Raises EngineUnavailable."""

    # Plain subscriptions

    def subscribe(self, subscription: int, pattern: str, opened: Callable[[Exception | None], None]) -> None:
        """Subscribe, and call `opened` when everything that is published from then on, by any client, will arrive."""

    def unsubscribe(self, subscription: int) -> None:
        """Unsubscribe. Messages that this process publishes after this call do not arrive."""

    # Stored

    async def add_durable(self, pattern: str) -> None:
        """Let the engine store topics that match from now on, unless it does so already."""

    async def open_consumer(self, spec: ConsumerSpec) -> ConsumerTerms:
        """Open a consumer.

        Raises DuplicateName if the place is durable, not shared, and used by another running process.
        """

    def close_consumer(self, subscription: int) -> None:
        """Stop the delivery of entries. Entries already received can still be acknowledged."""

    def leave_place(self, subscription: int) -> None:
        """Release the place, so that another subscriber can take it.

        Called after `close_consumer`, when no entry is held.
        """

    def pull(self, subscription: int, entries: int, max_bytes: int) -> None:
        """Request up to `entries` entries, delivered as they are stored. `pull_ended` follows."""

    def ack(self, subscription: int, token: str) -> None: ...

    def touch(self, subscription: int, token: str) -> None:
        """Renew the lease of an entry that is still being processed."""

    def refuse(self, subscription: int, tokens: list[str]) -> None:
        """Let another subscriber of the same place get these entries at once, in this order."""

    async def give_back(self, role: str, topic: str, data: bytes) -> None:
        """Store an entry for the subscribers of one place only. Returns when it is stored."""

    async def last(self, topic: str, below: int | None) -> Entry | None:
        """The last entry on a topic. With `below`: the last one with a lower number."""

    async def forget(self, role: str) -> bool:
        """Remove a place. Returns False if there is none."""

    async def places(self) -> list[str]:
        """The patterns of all places."""

    async def standings(self, topic: str, number: int, without: set[str]) -> dict[str, Standing]:
        """The standing of a stored message at each durable place that it was for, by role.

        `number` is the number of the message. Places with a role in `without` are omitted.
        """

    # A few keys

    async def keep(self, table: str, key: str, value: bytes) -> None: ...

    async def discard(self, table: str, key: str) -> None: ...

    async def kept(self, table: str, key: str) -> bytes | None: ...

    async def page(self, table: str, after: str) -> tuple[list[tuple[str, bytes]], str]:
        """A page of keys and values, in any stable order, and the start of the next page; "" after the last."""

    # The directory of channels

    async def read_directory(self, after: int) -> DirectoryChanges:
        """The changes after a version of the directory."""

    async def write_directory(self, key: str, value: bytes | None, version: int) -> int | None:
        """Change or remove a key. Returns the new version, or None if `version` is no longer the latest one."""

    # Other processes

    def tell(self, address: str, data: bytes) -> None:
        """Send a note to the process at an address, or to all processes of this namespace if the address is empty."""

    async def is_connected(self, address: str) -> bool:
        """Whether another process is connected to the engine. True if that cannot be determined."""
