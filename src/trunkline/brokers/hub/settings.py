"""The settings of a connection to a hub."""

from __future__ import annotations

from trunkline.settings import Group


class ConnectionSettings(Group, frozen=True, kw_only=True):
    """`connect_s` is how long calls wait for a hub that does not answer.

    After a connection is lost, the next attempt follows after `backoff_s`, then twice as long each time, up to
    `max_backoff_s`. Each pause is shortened by a random amount, so that a thousand clients do not reconnect at once.
    """

    connect_s: float = 5.0
    backoff_s: float = 0.05
    max_backoff_s: float = 5.0
    max_unsent_bytes: int = 64 * 1024 * 1024
    """The maximum number of bytes that wait while there is no connection."""
    max_inbox_bytes: int = 64 * 1024 * 1024
    """The maximum number of bytes in one subscriber's inbox. A single larger message still passes."""
    max_frame_bytes: int = 64 * 1024 * 1024
    shared_memory: bool = True
    """Whether large payloads go through shared memory, if the hub is on this host, of the same user, on `unix:`."""
    shared_memory_min_bytes: int = 256 * 1024
    """The minimum size of such a payload, at least 64 KiB."""
    shared_memory_pool_bytes: int = 128 * 1024 * 1024
    """The maximum amount of shared memory. Payloads without free memory are sent inline."""
    keys: str | None = None
    """The directory of keys, for `tcp:` and `zmq+tcp:`; by default what TRUNKLINE_KEYS names, if it names any."""
