"""What the shared half asks of the driver of an engine, and what the driver hands in.

A driver says how a batch is sent and stored, how a subscription and a consumer are opened, how an entry is
acknowledged, and how a few keys are kept. Nothing here knows messages: a batch is bytes. Everything else is shared:
numbers, credit, leases, retries, fates, dead letters, reconnection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.replica import DirectoryChanges
from trunkline.errors import Refused


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that the engine keeps a place for, as it is asked for."""

    subscription: int
    """Its number on this connection: what arrives carries it."""
    role: str
    """The name of its place: that of the group, or of the durable subscription. Empty if nobody else knows it."""
    pattern: str
    durable: bool
    """Whether the place outlives its subscribers. If not, it is removed some time after the last one left."""
    shared: bool
    """Whether several subscribers share it."""
    start: int | str
    """As `Delivery.start`; a number is that of an entry."""
    lease_s: float
    """After this time without `ack` or `touch` an entry is given to another subscriber."""


class ConsumerTerms(NamedTuple):
    """How a consumer was opened."""

    opened_ns: int
    """The time at the engine. What was stored before is from before the subscription."""


class Entry(NamedTuple):
    """An entry of the engine's store."""

    number: int
    """Numbers rise, in the order in which entries were stored."""
    topic: str
    data: bytes
    stored_ns: int
    token: str = ""
    """By which it is acknowledged."""


class ConsumerState(NamedTuple):
    """How far a place is that the engine keeps."""

    role: str
    pattern: str
    done: int
    """Every entry up to this one was acknowledged."""
    since: int
    """It begins after this entry."""


class EngineEvents(Protocol):
    """The shared half, as the driver sees it. Everything is called in the event loop thread."""

    def sent(self, number: int) -> None:
        """The server has all batches of `publish` up to this one."""

    def unheard(self, number: int) -> None:
        """The server has a batch of `publish`, and nobody listens there. Called before `sent`."""

    def heard(self, topic: str) -> None:
        """Somebody got a batch of `publish` on this topic. Only engines that say so call it."""

    def stored(self, number: int, entry: int) -> None:
        """A batch of `store` is stored, now or before."""

    def not_stored(self, number: int, error: Refused | None) -> None:
        """It is not, and will not be: `error` says why. None: the engine could not take it now, it is sent again."""

    def stored_open(self, number: int, refused: Mapping[int, Refused]) -> None:
        """All messages of a batch of `store_open` are stored, but for those that were refused: by index, why."""

    def arrived(self, subscription: int, topic: str, data: bytes) -> None:
        """A message for a plain subscription."""

    def open_arrived(self, subscription: int, topic: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """A message on an open topic, for a plain subscription."""

    def entry_arrived(self, subscription: int, entry: Entry) -> None:
        """An entry for a consumer, in answer to `pull`."""

    def pull_ended(self, subscription: int) -> None:
        """The engine gives no more entries for the last `pull`."""

    def lost(self, subscription: int, count: int, why: str) -> None:
        """The client library has dropped so many engine messages of a plain subscription; they are named elsewhere."""

    def trimmed(self, subscription: int, first: int, last: int, at_least: int, at_most: int) -> None:
        """The engine has removed entries with numbers from `first` to `last` before a consumer read them.

        So many were for it. If both are the same, others in between may have been read. If not, none was.
        """

    def told(self, data: bytes) -> None:
        """Another process, or this one, has sent this with `tell`."""

    def durable_changed(self) -> None:
        """`durable` has changed."""


class EngineDriver(Protocol):
    """One server, or cluster. Nothing blocks; without `async`, what is said without a connection is discarded."""

    name: str
    """The name of the broker: "nats", "redis"."""
    url: str
    """Without passwords, for error texts."""
    features: frozenset[Feature]
    """What the engine offers, once it was connected."""
    max_bytes: int
    """The largest message it takes."""
    opens: bool
    """Whether it has `publish_open`, and calls `open_arrived`: plain subscriptions get open topics that match, too."""

    @property
    def durable(self) -> tuple[str, ...]:
        """Patterns of the topics that it stores. Open topics have others."""

    @property
    def durable_open(self) -> tuple[str, ...]:
        """Patterns of the open topics that it stores, for programs without Trunkline to read."""

    @property
    def why(self) -> str:
        """What the client library last said went wrong; empty if it said nothing."""

    @property
    def run(self) -> str:
        """The identity of the store: another one numbers from the beginning."""

    @property
    def backlog(self) -> int:
        """Bytes that were sent and have not left this process."""

    def attach(self, events: EngineEvents, me: str) -> None:
        """Called once. `me` is the address of this process for `tell`."""

    async def connect(self) -> None:
        """Connect once, and prepare the store if there is to be one.

        Raises EngineUnavailable if nobody answers, and another TrunklineError if it will never work.
        """

    async def ended(self) -> str:
        """Return when the connection has ended: why."""

    async def aclose(self) -> None:
        """Send what waits, and disconnect."""

    # Publishing

    def publish(self, number: int, topic: str, data: bytes) -> None:
        """To whoever listens now. Answered by `sent`, in order."""

    def publish_open(self, number: int, topic: str, payload: bytes, headers: dict[str, str]) -> None:
        """One message of a batch, for programs without Trunkline. Answered by `sent`."""

    def store(self, number: int, topic: str, data: bytes, name: str) -> None:
        """Store it, and publish it to whoever listens now. A name that was stored before is not stored again."""

    def store_open(self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], name: str) -> None:
        """Store each message of a batch, and publish it. Answered by `stored_open`.

        With its index, the name is that of a message: one that was stored before is not stored again.
        """

    async def sync(self) -> None:
        """Return when the server has everything that was published before; raises EngineUnavailable."""

    # Plain subscriptions

    def subscribe(self, subscription: int, pattern: str, opened: Callable[[Exception | None], None]) -> None:
        """Call `opened` when everything that is published from now on, anywhere, will arrive."""

    def unsubscribe(self, subscription: int) -> None:
        """What is published from now on, here, does not arrive any more."""

    # Stored

    async def add_durable(self, pattern: str) -> None:
        """Store what matches from now on, if it is not stored already."""

    async def open_consumer(self, spec: ConsumerSpec) -> ConsumerTerms:
        """Raises DuplicateName if the place is durable, not shared, and another process that lives has it."""

    def close_consumer(self, subscription: int) -> None:
        """It gets no more entries. Those it has can still be acknowledged."""

    def leave_place(self, subscription: int) -> None:
        """Called after `close_consumer`, when nothing is held any more: somebody else may have its place."""

    def pull(self, subscription: int, entries: int, max_bytes: int) -> None:
        """Up to so many entries, as they come; then `pull_ended`."""

    def ack(self, subscription: int, token: str) -> None: ...

    def touch(self, subscription: int, token: str) -> None:
        """It is still being worked on: its lease begins anew."""

    def refuse(self, subscription: int, tokens: list[str]) -> None:
        """Another subscriber of the same place is to get these entries, now, in this order."""

    async def give_back(self, role: str, topic: str, data: bytes) -> None:
        """Store something for the subscribers of one place alone. Returns when it is stored."""

    async def last(self, topic: str, below: int | None) -> Entry | None:
        """The last entry on a topic; with `below`, of those with a lower number."""

    async def forget(self, role: str) -> bool:
        """Remove a place; False if there is none."""

    async def states(self) -> list[ConsumerState]:
        """The durable places that the engine keeps."""

    # A few keys

    async def keep(self, table: str, key: str, value: bytes) -> None: ...

    async def discard(self, table: str, key: str) -> None: ...

    async def page(self, table: str, after: str) -> tuple[list[tuple[str, bytes]], str]:
        """Values by key, in any order that stays the same, and where the next page begins; "" after the last."""

    # The directory of channels

    async def read_directory(self, after: int) -> DirectoryChanges:
        """What was changed after a version of the directory."""

    async def write_directory(self, key: str, value: bytes | None, version: int) -> int | None:
        """Change a key, or remove it. Returns the new version; None if `version` is not the last one any more."""

    # Other processes

    def tell(self, address: str, data: bytes) -> None:
        """Send a note to the process at an address; to all of this namespace if the address is empty."""

    async def is_connected(self, address: str) -> bool:
        """Whether another process is connected to the engine; if nobody can tell, it is taken to be."""
