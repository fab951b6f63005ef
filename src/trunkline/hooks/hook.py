"""Hooks run around a publish, around a handler, and on incoming messages.

`Hook` is the base of all of them. A plain function is a hook, too:
`async def hook(batch, forward): await forward(batch)`. `each` makes a hook of a function on one message.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from trunkline.brokers.broker import Broker
from trunkline.codec import UNOPENED
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.pending import Failures
from trunkline.errors import HookFailed, InvalidPayload, PartlyRefused, TrunklineError, UsageError
from trunkline.hooks.head import HeadSampling
from trunkline.message import Message

Batch = Sequence[Message]
Forward = Callable[[Batch], Awaitable[None]]
HookFunction = Callable[[Batch, Forward], Awaitable[None]]
Listener = Callable[[Message, bool], None]


class Stage(enum.IntEnum):
    """The order in which hooks run, whatever the order they are given in."""

    TRACE = 10
    LOG = 20
    METRICS = 30
    OWN = 40
    COMPRESS = 50
    ENCRYPT = 55
    PERSIST = 60
    BREAKER = 70
    LIMIT = 80


@dataclass(frozen=True, slots=True)
class Attachment:
    """The parts of a bus that its hooks may use."""

    name: str
    broker: Broker
    now: Callable[[], float]
    """The event loop's time, in seconds."""
    on_handled: Callable[[Listener], None]
    """Register `listener(message, well)`, as `Bus.on_handled` does."""
    record_in: Callable[[Ledger], None]
    """Write fates to this ledger from now on."""


class Hook:
    """The base class of hooks. Override what you need; the defaults change nothing.

    Exceptions that are not Trunkline's become HookFailed.
    """

    stage: Stage = Stage.OWN
    numbers: bool = False
    """Whether messages have their numbers when this hook forwards them."""
    watches_streams: bool = False
    """Whether `taken` is called. Each message is then taken from its stream by itself, which takes longer."""
    head: HeadSampling | None = None
    """Selects the publishes that need this hook, if only a share of them does."""

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        """Called around a publish.

        The batch has one topic. Messages that are not forwarded are refused: raise an error to give the reason.
        """
        await forward(batch)

    def open(self, message: Message) -> Message:
        """Undo the change of this hook in a received message, before a stream, a handler or a request gets it.

        Returns the message as it was before this hook changed it. Raises InvalidPayload if that is not possible.
        """
        return message

    def handling(self, message: Message) -> AbstractContextManager[None]:
        """Entered before a handler or an actor is called with the message, left when it has returned or raised."""
        return contextlib.nullcontext()

    def handling_by(self, message: Message, subscriber: str, pattern: str) -> AbstractContextManager[None]:
        """Like `handling`, with the name and the pattern of the handler. Override one of the two."""
        return self.handling(message)

    def taken(self, message: Message, subscriber: str, pattern: str) -> None:
        """Called when a message is taken from a stream, if the hook `watches_streams`."""
        return

    def asking(self) -> AbstractContextManager[None]:
        """Entered before a request is published, left when it has its answer or has failed."""
        return contextlib.nullcontext()

    def retried(self, message: Message, subscriber: str, pattern: str, error: BaseException, pause_s: float) -> None:
        """Called when a handler has failed on a message, and gets it again after a pause."""
        return

    def died(self, letter: DeadLetter) -> None:
        """Called when a message became a dead letter at a subscriber in this process.

        If several buses share a broker, only hooks of the first are called.
        """
        return

    def attach(self, bus: Attachment) -> None:
        """Called once, when a bus with this hook is created."""
        return


class _Function(Hook):
    """A plain callable as a hook."""

    def __init__(self, function: HookFunction) -> None:
        strange = [
            name
            for name in ("open", "handling", "handling_by", "attach", "stage", "numbers")
            if hasattr(function, name)
        ]
        if strange:
            raise UsageError(f"{name_of(function)} has {', '.join(strange)}: derive it from trunkline.hooks.Hook")
        self.function = function

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        await self.function(batch, forward)


def name_of(hook: object) -> str:
    if isinstance(hook, (_Function, _Each)):
        hook = hook.function
    return getattr(hook, "__name__", None) or type(hook).__name__


class HookChain:
    """The hooks of one bus, in the order of their stages."""

    def __init__(self, hooks: Iterable[Hook | HookFunction]) -> None:
        wrapped = (hook if isinstance(hook, Hook) else _Function(hook) for hook in hooks)
        self._hooks = tuple(sorted(wrapped, key=lambda hook: hook.stage))
        # The last change is undone first.
        self._openers = [hook.open for hook in reversed(self._hooks) if type(hook).open is not Hook.open]
        self._arounds = [hook.handling_by for hook in self._hooks if _surrounds(type(hook))]
        self.opens = bool(self._openers)
        """Whether incoming messages must be opened."""
        self.surrounds = bool(self._arounds)
        """Whether a hook must be entered around a handler."""
        self.numbers = any(hook.numbers for hook in self._hooks)
        """Whether a hook assigns numbers to messages."""
        self._taken = [hook.taken for hook in self._hooks if hook.watches_streams]
        self._retried = [hook.retried for hook in self._hooks if type(hook).retried is not Hook.retried]
        self._died = [hook.died for hook in self._hooks if type(hook).died is not Hook.died]
        self._asking = [hook.asking for hook in self._hooks if type(hook).asking is not Hook.asking]
        self.asks = bool(self._asking)
        """Whether a hook must be entered around a request."""

    @property
    def head(self) -> HeadSampling | None:
        """Selects the publishes that need hooks, if only a share of them does."""
        return self._hooks[0].head if len(self._hooks) == 1 else None

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def __len__(self) -> int:
        return len(self._hooks)

    def attach(self, bus: Attachment) -> None:
        for hook in self._hooks:
            hook.attach(bus)

    def open(self, message: Message) -> Message:
        """A message as it was before hooks like these had changed it; raises InvalidPayload."""
        for opener in self._openers:
            try:
                message = opener(message)
            except InvalidPayload:
                raise
            except Exception as error:
                # One message that a hook cannot open must not end the stream that it comes on.
                name = name_of(getattr(opener, "__self__", opener))
                raise InvalidPayload(f"the hook {name} cannot open it: {type(error).__name__}: {error}") from error
        return message

    def readable(self, message: Message) -> Message:
        """As `open`, but for a message that cannot be opened, the error is raised when it is decoded."""
        try:
            return self.open(message)
        except InvalidPayload as error:
            return replace(message, encoding=f"{UNOPENED}{error}")

    def reader_of(self, subscriber: str, pattern: str) -> Callable[[Message], Message] | None:
        """A function to apply to each message that is taken from a stream; None if there is nothing to do."""
        if not self._taken:
            return self.readable if self.opens else None

        def read(message: Message) -> Message:
            for taken in self._taken:
                taken(message, subscriber, pattern)
            return self.readable(message)

        return read

    def reopened(self, message: Message) -> Message:
        """As `open`, for publishing again under another header. A message that cannot be opened is not changed."""
        try:
            return self.open(message)
        except InvalidPayload:
            return message

    def handling(self, message: Message, subscriber: str, pattern: str) -> ExitStack:
        """The contexts to enter around a handler."""
        with ExitStack() as stack:
            for around in self._arounds:
                stack.enter_context(around(message, subscriber, pattern))
            return stack.pop_all()

    def asking(self) -> ExitStack:
        """The contexts to enter around a request."""
        with ExitStack() as stack:
            for asking in self._asking:
                stack.enter_context(asking())
            return stack.pop_all()

    def retried(self, message: Message, subscriber: str, pattern: str, error: BaseException, pause_s: float) -> None:
        for retried in self._retried:
            retried(message, subscriber, pattern, error, pause_s)

    def died(self, letter: DeadLetter) -> None:
        for died in self._died:
            died(letter)

    async def run(self, batch: Batch, accept: Forward) -> tuple[Failures, Exception | None]:
        """Pass a batch through the hooks. `accept` gets the messages that the last hook forwards.

        Returns the messages that were not forwarded, with the reasons, and the error for their publisher.
        """
        passing = _Passing(self._hooks, accept)
        error: Exception | None = None
        try:
            await passing.step(0, batch)
        except PartlyRefused as partly:
            return passing.stopped(partly.refused), partly
        except Exception as caught:
            error = caught
        else:
            if len(passing.accepted) == len(batch):
                return [], None
        why = error or HookFailed("of this bus", RuntimeError("neither forwarded the message nor raised an error"))
        stopped = passing.stopped((message, why) for message in batch)
        return stopped, error or (why if stopped else None)


def _surrounds(kind: type[Hook]) -> bool:
    return kind.handling is not Hook.handling or kind.handling_by is not Hook.handling_by


class _Passing:
    """One batch that passes through the hooks. `accepted` has the ids of the resulting messages."""

    __slots__ = ("_accept", "_hooks", "_latest", "accepted")

    def __init__(self, hooks: tuple[Hook, ...], accept: Forward) -> None:
        self._hooks = hooks
        self._accept = accept
        self.accepted: set[str] = set()
        self._latest: dict[str, Message] = {}

    def stopped(self, refused: Iterable[tuple[Message, Exception]]) -> Failures:
        """The messages that were not forwarded, in their state after the last hook that passed them on."""
        return [
            (self._latest.get(message.id, message), why) for message, why in refused if message.id not in self.accepted
        ]

    async def step(self, index: int, batch: Batch) -> None:
        if not batch:
            return
        if batch[0].seq:
            self._latest.update((message.id, message) for message in batch)
        if index == len(self._hooks):
            self.accepted.update(message.id for message in batch)
            await self._accept(batch)
            return
        hook = self._hooks[index]
        try:
            await hook(batch, partial(self.step, index + 1))
        except TrunklineError:
            raise
        except Exception as error:
            raise HookFailed(name_of(hook), error) from error


class _Each(Hook):
    def __init__(self, function: Callable[[Message], Message], stage: Stage) -> None:
        self.function = function
        self.stage = stage

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        passed: list[Message] = []
        refused: list[tuple[Message, Exception]] = []
        for message in batch:
            try:
                passed.append(self.function(message))
            except TrunklineError as error:
                refused.append((message, error))
            except Exception as error:
                failure = HookFailed(name_of(self), error)
                failure.__cause__ = error
                refused.append((message, failure))
        try:
            await forward(passed)
        except PartlyRefused as error:
            refused.extend(error.refused)
        if refused:
            raise refused[0][1] if len(batch) == 1 else PartlyRefused(refused, len(batch))


def each(function: Callable[[Message], Message], *, stage: Stage = Stage.OWN) -> Hook:
    """A hook from a function that returns the message, changed or not, or raises to refuse it.

    A refused message does not affect the others of its batch.
    """
    return _Each(function, stage)
