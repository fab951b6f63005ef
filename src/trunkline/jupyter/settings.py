"""The settings of a kernel's client."""

from __future__ import annotations

from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidSettings
from trunkline.settings import Group, Orphans


class KernelSettings(Group, frozen=True, kw_only=True):
    """Limits and timeouts of one kernel's client.

    An execution ends after `request_timeout_s`, unless it sets another limit. Every `cleanup_interval_s`, requests
    past their time limit and old orphans are removed. Output that arrives up to `late_s` after an execution was
    complete (of a thread that continues to print) still belongs to it.

    Each channel of an execution keeps `channel_capacity` unread messages; `channel_overflow` determines which are
    dropped beyond that. The output of an execution is kept up to `max_output_bytes`, the rest is counted.

    A kernel must answer within `start_timeout_s` after its start; until then, a request is sent every `nudge_s`. A
    kernel that was not started here counts as dead when it has not answered a heartbeat for `heartbeat_timeout_s`. A
    kernel that was started with `autorestart` is restarted up to `restarts` times within `restarts_within_s`.
    """

    request_timeout_s: float = 300.0
    cleanup_interval_s: float = 30.0
    late_s: float = 60.0
    channel_capacity: int = 10_000
    channel_overflow: Overflow = Overflow.DROP_OLDEST
    max_output_bytes: int = 64 * 1024 * 1024
    start_timeout_s: float = 60.0
    shutdown_timeout_s: float = 5.0
    nudge_s: float = 0.5
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 10.0
    restarts: int = 5
    restarts_within_s: float = 60.0
    max_unpublished: int = 100_000
    orphans: Orphans = Orphans()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channel_overflow is Overflow.BLOCK:
            raise InvalidSettings(
                "KernelSettings.channel_overflow cannot be block: a kernel does not wait, and one reader must not stop"
                " the others. Use drop_oldest, drop_newest or reject"
            )
