"""How a hub behaves."""

from __future__ import annotations

from trunkline.settings import Group


class Limits(Group, frozen=True, kw_only=True):
    """What one client may use. Who publishes faster than `messages_per_s` is read more slowly, and loses nothing."""

    connections: int = 10_000
    subscriptions: int = 100_000
    topics: int = 100_000
    pending_bytes: int = 64 * 1024 * 1024
    """Of batches that wait for a subscriber. Beyond it, the client is not read from until some of them are taken."""
    messages_per_s: float | None = None


class HubSettings(Group, frozen=True, kw_only=True):
    heartbeat_s: float = 5.0
    """Who is silent for twice as long is suspected, for three times as long gone."""
    hello_s: float = 5.0
    """So long a new connection has to say who it is."""
    window: int = 10_000
    """How many messages on one topic a publisher may have on their way."""
    max_clients: int = 10_000
    max_frame_bytes: int = 64 * 1024 * 1024
    max_malformed: int = 100
    """So many bad frames, and the connection is closed."""
    shared_memory: bool = True
    """Whether large payloads of clients on a unix socket, and of the same user, may go through shared memory."""
    limits: Limits = Limits()
