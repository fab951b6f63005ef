"""Hooks: what happens around a publish. One callable type; everything composes with it.

A hook gets the batch and the way on: `async def hook(batch, forward): await forward(batch)`. What it does not forward
is refused, and must be said so by raising. `each` makes a hook of a function on one message.

A hook may also have `open(message)`, the way back: what its bus takes in passes it before a stream, a handler or a
request sees it. It returns the message as it was before the hook had changed it, or raises InvalidPayload.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from trunkline.errors import HookFailed, PartlyRefused, TrunklineError
from trunkline.message import Message

Batch = Sequence[Message]
Forward = Callable[[Batch], Awaitable[None]]
Hook = Callable[[Batch, Forward], Awaitable[None]]


class Stage(enum.IntEnum):
    """The order in which hooks run, whatever the order they are given in. A hook without a `stage` is at OWN."""

    TRACE = 10
    LOG = 20
    METRICS = 30
    OWN = 40
    COMPRESS = 50
    ENCRYPT = 55
    PERSIST = 60
    BREAKER = 70
    LIMIT = 80


def in_order(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    return tuple(sorted(hooks, key=lambda hook: getattr(hook, "stage", Stage.OWN)))


def openers(hooks: Iterable[Hook]) -> tuple[Callable[[Message], Message], ...]:
    """The ways back, of hooks in order: what was done last is undone first."""
    found = (getattr(hook, "open", None) for hook in hooks)
    return tuple(reversed([each for each in found if each is not None]))


def name_of(hook: object) -> str:
    return getattr(hook, "__name__", None) or type(hook).__name__


class Passage:
    """One batch on its way through the hooks. `accepted` is what came out at the end."""

    __slots__ = ("_accept", "_hooks", "_latest", "accepted")

    def __init__(self, hooks: tuple[Hook, ...], accept: Forward) -> None:
        self._hooks = hooks
        self._accept = accept
        self.accepted: list[Message] = []
        self._latest: dict[str, Message] = {}

    async def run(self, batch: Batch) -> None:
        await self._step(0, batch)

    def latest(self, message: Message) -> Message:
        """A message as it was after the last hook that passed it on: it may have a number by then."""
        return self._latest.get(message.id, message)

    async def _step(self, index: int, batch: Batch) -> None:
        if not batch:
            return
        if batch[0].seq > 0:
            self._latest.update((message.id, message) for message in batch)
        if index == len(self._hooks):
            self.accepted.extend(batch)
            await self._accept(batch)
            return
        hook = self._hooks[index]
        try:
            await hook(batch, partial(self._step, index + 1))
        except TrunklineError:
            raise
        except Exception as error:
            raise HookFailed(name_of(hook), error) from error


def each(function: Callable[[Message], Message]) -> Hook:
    """A hook from a function that returns the message to go on with, changed or not, or raises to refuse it.

    A message that is refused harms no other of its batch.
    """

    async def hook(batch: Batch, forward: Forward) -> None:
        passed: list[Message] = []
        refused: list[tuple[Message, Exception]] = []
        for message in batch:
            try:
                passed.append(function(message))
            except TrunklineError as error:
                refused.append((message, error))
            except Exception as error:
                failure = HookFailed(name_of(function), error)
                failure.__cause__ = error
                refused.append((message, failure))
        try:
            await forward(passed)
        except PartlyRefused as error:
            refused.extend(error.refused)
        if refused:
            raise refused[0][1] if len(batch) == 1 else PartlyRefused(refused, len(batch))

    hook.__name__ = name_of(function)
    if (stage := getattr(function, "stage", None)) is not None:
        hook.stage = stage  # type: ignore[attr-defined]  # functions have attributes
    return hook
