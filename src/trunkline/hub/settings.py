"""The settings of a hub."""

from __future__ import annotations

from trunkline.settings import Group


class Limits(Group, frozen=True, kw_only=True):
    """The limits of one client.

    If it publishes faster than `messages_per_s`, the hub reads more slowly; nothing is lost.
    """

    connections: int = 10_000
    subscriptions: int = 100_000
    topics: int = 100_000
    pending_bytes: int = 64 * 1024 * 1024
    """The limit for batches that wait for a subscriber.

    Beyond it, the hub stops reading from the client for a while.
    """
    messages_per_s: float | None = None


class HubSettings(Group, frozen=True, kw_only=True):
    heartbeat_s: float = 5.0
    """A client that is silent for twice as long is suspected, and for three times as long disconnected."""
    hello_s: float = 5.0
    """How long a new connection has to send HELLO."""
    window: int = 10_000
    """The maximum number of unconfirmed messages of a publisher on one topic."""
    max_clients: int = 10_000
    max_frame_bytes: int = 64 * 1024 * 1024
    max_malformed: int = 100
    """The connection is closed after this many malformed frames."""
    shared_memory: bool = True
    """Whether large payloads of clients on a unix socket, and of the same user, may go through shared memory."""
    limits: Limits = Limits()
