"""The state of a hub at one moment: the answer to SNAPSHOT, shown by the command line, `top` and the page."""

from __future__ import annotations

import msgspec


class ClientSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A connected client."""

    session: str
    name: str
    identity: str
    address: str
    since_ns: int
    library: str = ""
    suspected: bool = False
    """Whether it has been silent for more than two heartbeats."""
    subscriptions: int = 0
    published: int = 0
    """Messages it has published on this connection."""
    delivered: int = 0
    """Messages that were sent to it on this connection."""
    backlog_bytes: int = 0
    """Bytes that were sent to it and are not yet accepted by the network."""
    held_up: int = 0
    """Batches of this client that wait for room at a subscriber."""


class SubscriberSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscriber, connected or (if it is durable) not."""

    name: str
    pattern: str
    session: str = ""
    """The session of its client. Empty if it runs in the hub's process, or is not connected."""
    client: str = ""
    connected: bool = True
    group: str = ""
    durable: bool = False
    overflow: str = "block"
    capacity: int = 0
    waiting: int = 0
    """Messages that wait at the hub for room at the subscriber."""
    waiting_since_ns: int = 0
    """Since when messages have been waiting without a pause; 0 if none wait."""
    behind: int = 0
    """Stored messages that match a durable subscription, and that it has not settled."""
    accepted: int = 0
    delivered: int = 0
    filtered: int = 0
    expired: int = 0
    dropped: int = 0
    dead: int = 0
    in_flight: int = 0


class TopicSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic that was published on."""

    topic: str
    published: int
    """Messages since the hub started."""


class HubSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a hub. The number of rows is limited; the totals are exact."""

    at_ns: int
    hub: str
    """The name of this run of the hub. It changes with every restart."""
    since_ns: int
    listening: list[str]
    published: int
    """Messages of all clients since the hub started."""
    last: int
    """The number of the last message."""
    journal: str = ""
    """The directory of the journal, if there is one."""
    dead_letters: int = 0
    orphans: int = 0
    counts: dict[str, int] = {}
    account: dict[str, int] = {}
    """The account of all subscribers together, including those that have left."""
    clients: list[ClientSnapshot] = []
    clients_total: int = 0
    subscribers: list[SubscriberSnapshot] = []
    """Subscribers, those with the most waiting messages first."""
    subscribers_total: int = 0
    topics: list[TopicSnapshot] = []
    """Topics, those with the most messages first."""
    topics_total: int = 0
