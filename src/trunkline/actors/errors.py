"""Errors of actors. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from typing import ClassVar

from trunkline.errors import TrunklineError
from trunkline.plural import counted


class ActorError(TrunklineError):
    stands_for_cause: ClassVar[bool] = False
    """Whether supervision uses the directive of its `__cause__` if there is none for the error itself."""


class UnknownActor(ActorError):
    def __init__(self, address: str) -> None:
        super().__init__(f"there is no actor {address} in this system")
        self.address = address


class ActorStopped(ActorError):
    """The actor was stopped before it had handled a request, or while it started."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} was stopped before the operation finished")
        self.address = address


class ActorFailed(ActorError):
    stands_for_cause = True

    def __init__(self, address: str, restarts: int, why: str) -> None:
        times = f"was restarted {counted(restarts, 'time')} and failed again" if restarts else "failed"
        super().__init__(f"{address} {times}: {why}")
        self.address = address
        self.restarts = restarts
        self.why = why


class ActorProcessFailed(ActorError):
    """The error that an actor raised in its own process, or how that process ended.

    `error_type` is the name of the class that was raised there, and `traceback` its traceback. The error itself is the
    `__cause__`, if it can be pickled.
    """

    stands_for_cause = True

    def __init__(self, address: str, what: str, error_type: str = "", traceback: str = "") -> None:
        super().__init__(what)
        self.address = address
        self.error_type = error_type
        self.traceback = traceback
        if traceback:
            self.add_note(traceback)


class StashFull(ActorError):
    def __init__(self, address: str, capacity: int) -> None:
        super().__init__(
            f"the stash of {address} is full: it holds {counted(capacity, 'message')}, as many as the mailbox. "
            "Call unstash first"
        )
        self.address = address
        self.capacity = capacity


class SystemStopped(ActorError):
    def __init__(self, name: str, state: str) -> None:
        super().__init__(f"the actor system {name!r} is {state}: use it inside `async with ActorSystem(…)`")
        self.name = name
        self.state = state
