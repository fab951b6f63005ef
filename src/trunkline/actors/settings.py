"""How an actor is kept: its mailbox, its supervision, what becomes of the message it failed on."""

from __future__ import annotations

import enum

from trunkline.actors.supervision import Restart, Strategy
from trunkline.delivery.subscriber import Overflow
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
    a critical or high one waits, a normal one is refused, a low one dropped; or as `overflow` says. `restart` is how it
    is started anew, `strategy` whom the failure of one of its own children concerns. The message it failed on is a dead
    letter, is tried again up to `attempts` times, or dropped, as `failed` says. One message may take `timeout_s`; None:
    any time.
    """

    capacity: int = 10_000
    overflow: Overflow | None = None
    restart: Restart = Restart()
    strategy: Strategy = Strategy.ONE_FOR_ONE
    failed: Failed = Failed.DEAD_LETTER
    attempts: int = 3
    timeout_s: float | None = None
    process: bool = False
    """In a process of its own: for what computes, and would keep all others waiting."""


class SystemSettings(Group, frozen=True, kw_only=True):
    """How a system ends: actors have `drain_s` to handle what waits for them."""

    may_be_zero = frozenset({"drain_s"})

    drain_s: float = 5.0
    restart: Restart = Restart()
    strategy: Strategy = Strategy.ONE_FOR_ONE
