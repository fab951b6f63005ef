"""How an actor is kept: its mailbox, its supervision, what becomes of the message it failed on."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from trunkline.actors.supervision import Directive, Restart, Strategy
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidSettings
from trunkline.settings import Group


class Failed(enum.StrEnum):
    """What becomes of the message that was being handled when an actor failed."""

    DEAD_LETTER = "dead_letter"
    RETRY = "retry"
    """The next incarnation gets it first; after `attempts` it is a dead letter."""
    DROP = "drop"


class Keep(Group, frozen=True, kw_only=True):
    """What `spawn` is told of an actor, as keywords.

    Its mailbox holds `capacity` messages. Beyond that a message is treated by its priority (`overflow` None): who sends
    a critical or high one waits, a normal one is refused, a low one dropped; or as `overflow` says. `on_error` says
    what is done about errors of a class, `{ValueError: Directive.RESUME}`; after all others it is started anew, as
    `restart` says. `strategy` is whom the failure of one of its own children concerns. The message it failed on is a
    dead letter, is tried again up to `attempts` times, or dropped, as `failed` says. One message may take `timeout_s`;
    None: any time. A handler that cannot be interrupted (a plain `def`, or one in another process) and still runs
    `stuck_s` after its time is stuck: an error in the log, and the state of its actor.
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
    """In a process of its own: for what computes, and would keep all others waiting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.on_error:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidSettings(f"Keep.on_error is about classes of exceptions, and {kind!r} is none")


class SystemSettings(Group, frozen=True, kw_only=True):
    """How a system ends: actors have `drain_s` to handle what waits for them.

    Plain `def` handlers run in up to `max_threads` threads. Whoever watches an actor of another system hears that it
    has ended if that system has not answered for `watch_s` seconds.
    """

    may_be_zero = frozenset({"drain_s"})

    drain_s: float = 5.0
    restart: Restart = Restart()
    strategy: Strategy = Strategy.ONE_FOR_ONE
    max_threads: int = 256
    watch_s: float = 15.0
