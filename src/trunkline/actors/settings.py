"""The options of an actor: its mailbox, its supervision, and what happens to a message on which it failed."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from trunkline.actors.supervision import Directive, Restart, Strategy
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidSettings
from trunkline.settings import Group


class Failed(enum.StrEnum):
    """What happens to the message on which an actor failed."""

    DEAD_LETTER = "dead_letter"
    RETRY = "retry"
    """The next incarnation gets it first; after `attempts` it is a dead letter."""
    DROP = "drop"


class Keep(Group, frozen=True, kw_only=True):
    """The options of `spawn`, as keywords.

    The mailbox holds `capacity` messages. When it is full, the priority of a message decides (`overflow` None): the
    sender of a critical or high one waits, a normal one is refused, a low one is dropped. `overflow` sets another
    policy. `on_error` maps error classes to a directive, `{ValueError: Directive.RESUME}`; after all other errors the
    actor is restarted, according to `restart`. `strategy` determines which children are affected when one of them
    fails. `failed` determines what happens to the message on which the actor failed: it becomes a dead letter, is tried
    again up to `attempts` times, or is dropped. One message may take `timeout_s`; None means no limit. A handler that
    cannot be interrupted (a plain `def`, or one in another process) and still runs `stuck_s` after its time limit is
    stuck: an error is logged, and the state of the actor shows it.
    """

    capacity: int = 10_000
    overflow: Overflow | None = None
    restart: Restart = Restart()
    on_error: dict[Any, Directive] = msgspec.field(default_factory=dict)
    strategy: Strategy = Strategy.ONE_FOR_ONE
    failed: Failed = Failed.DEAD_LETTER
    attempts: int = 3
    timeout_s: float | None = None
    stuck_s: float = 10.0
    process: bool = False
    """Run the actor in its own process: for computations that would block all others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.on_error:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidSettings(f"Keep.on_error takes exception classes, not {kind!r}")


class SystemSettings(Group, frozen=True, kw_only=True):
    """The settings of an actor system. At its end, actors have `drain_s` to handle their waiting messages.

    Plain `def` handlers run in up to `max_threads` threads. An actor of another system that is watched counts as ended
    if its system has not answered for `watch_s` seconds.
    """

    may_be_zero = frozenset({"drain_s"})

    drain_s: float = 5.0
    restart: Restart = Restart()
    strategy: Strategy = Strategy.ONE_FOR_ONE
    max_threads: int = 256
    watch_s: float = 15.0
