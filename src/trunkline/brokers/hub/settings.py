"""How a client behaves towards its hub."""

from __future__ import annotations

from trunkline.settings import Group


class ConnectionSettings(Group, frozen=True, kw_only=True):
    """`connect_s` is how long anybody waits for a hub that does not answer.

    After a connection is lost, the next attempt follows after `backoff_s`, then twice as long each time, up to
    `max_backoff_s`, and each pause is shortened by chance, so that a thousand clients do not come back at once.
    """

    connect_s: float = 5.0
    backoff_s: float = 0.05
    max_backoff_s: float = 5.0
    max_unsent_bytes: int = 64 * 1024 * 1024
    """How many bytes may wait while there is no connection."""
    max_inbox_bytes: int = 64 * 1024 * 1024
    """How many bytes may wait in one subscriber's inbox. A single larger message still passes."""
    max_frame_bytes: int = 64 * 1024 * 1024
    keys: str | None = None
    """The directory of keys, for `tcp:` and `zmq+tcp:`; by default what TRUNKLINE_KEYS names, if it names any."""
