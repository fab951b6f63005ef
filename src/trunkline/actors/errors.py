"""Errors of actors. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from trunkline.errors import TrunklineError


class ActorError(TrunklineError):
    pass


class UnknownActor(ActorError):
    def __init__(self, address: str) -> None:
        super().__init__(f"there is no actor {address} in this system")
        self.address = address


class ActorFailed(ActorError):
    def __init__(self, address: str, restarts: int, why: str) -> None:
        super().__init__(f"{address} was restarted {restarts} times and failed again: {why}")
        self.address = address
        self.restarts = restarts
        self.why = why


class ActorProcessFailed(ActorError):
    """The error that an actor raised in a process of its own, or how that process ended."""

    def __init__(self, address: str, what: str, traceback: str) -> None:
        super().__init__(what)
        self.address = address
        if traceback:
            self.add_note(traceback)


class SystemStopped(ActorError):
    def __init__(self, name: str, state: str) -> None:
        super().__init__(f"the actor system {name!r} is {state}: use it inside `async with ActorSystem(…)`")
        self.name = name
        self.state = state
