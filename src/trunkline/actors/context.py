"""The context: how an actor reaches its system and other actors. It publishes, and does not resolve addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from trunkline.actors.actor import PLAIN, Plan, schema_of
from trunkline.actors.ref import Ref, Way
from trunkline.actors.timers import QuietTimer, Timer, Timers
from trunkline.delivery.plain_run import RunReader
from trunkline.errors import UsageError
from trunkline.message import Fields, Message
from trunkline.topic import endpoint

if TYPE_CHECKING:
    from trunkline.actors.actor import Actor
    from trunkline.actors.blocking import BlockingContext


class ContextCell(Protocol):
    """The interface of a cell for a context. It is a cell of a system, or its counterpart in another process."""

    ref: Ref
    plan: Plan
    last_at: float | None

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def busy(self) -> bool: ...

    @property
    def way(self) -> Way: ...

    async def spawn_child(
        self,
        kind: type[Actor],
        arguments: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        name: str | None,
        options: dict[str, Any],
    ) -> Ref: ...

    def watch(self, address: str) -> None: ...

    def unwatch(self, address: str) -> None: ...

    def stop_soon(self) -> None: ...

    def stash(self) -> None: ...

    def unstash(self) -> None: ...

    def become(self, methods: tuple[Callable[..., Any], ...]) -> None: ...

    def send_timed(self, payload: object, timer: Timer | None) -> None:
        """Send a message to the actor itself. Its timer may be cancelled before the message is handled."""


class Context:
    """Belongs to one incarnation of an actor. For the event loop; plain `def` handlers use `blocking`."""

    __slots__ = ("_cell", "_message", "_quiet", "_timers", "reader")

    def __init__(self, cell: ContextCell) -> None:
        self._cell = cell
        self._timers: Timers | None = None
        self._quiet: QuietTimer | None = None
        self._message: Message | None = None
        self.reader: RunReader | None = None
        """Has the message that is being handled, if the actor takes the payloads of a run."""

    @property
    def message(self) -> Message | None:
        """The message that is being handled."""
        return self._message if self.reader is None else self.reader.current

    @message.setter
    def message(self, message: Message | None) -> None:
        self._message = message

    @property
    def me(self) -> Ref:
        return self._cell.ref

    @property
    def address(self) -> str:
        return self._cell.ref.address

    @property
    def sender(self) -> Ref | None:
        """The sender of the message that is being handled, if it has one."""
        message = self.message
        return Ref(self._cell.way, message.sender) if message is not None and message.sender else None

    @property
    def blocking(self) -> BlockingContext:
        """The same interface for a plain `def` handler, which runs in a thread. Each call waits for its result."""
        from trunkline.actors.blocking import BlockingContext

        return BlockingContext(self, self._cell)

    # Publishing

    def send(self, to: str | Ref, payload: object = b"", **fields: Unpack[Fields]) -> Awaitable[str]:
        """Send to an address; return the message's id. The sender is this actor."""
        check_loop("send")
        given = self._fields(payload, fields)
        address = to.address if isinstance(to, Ref) else to
        return self._cell.way.send(address, payload, **given)

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Awaitable[str]:
        """Publish on any topic of the bus."""
        check_loop("publish")
        return self._cell.way.publish(topic, payload, **self._fields(payload, fields))

    def request(self, to: str | Ref, payload: object = b"", **options: Any) -> Awaitable[Any]:
        """Send a request to another actor, and wait for the answer. Raises RequestTimeout.

        This actor handles no other message meanwhile.
        """
        check_loop("request")
        address = to.address if isinstance(to, Ref) else to
        options = {**self._fields(payload, {}), **options}
        return self._cell.way.request(endpoint(address), payload, **options)

    def try_request(self, to: str | Ref, payload: object = b"", **options: Any) -> Awaitable[Any]:
        """Like `request`, but returns None if no answer arrives in time."""
        check_loop("try_request")
        address = to.address if isinstance(to, Ref) else to
        options = {**self._fields(payload, {}), **options}
        return self._cell.way.try_request(endpoint(address), payload, **options)

    def _fields(self, payload: object, fields: Fields) -> Fields:
        given: Fields = {"sender": self.address}
        if payload.__class__ not in PLAIN:
            given["schema"] = schema_of(payload.__class__)
        if self.message is not None:
            given["correlation_id"] = self.message.correlation_id or self.message.id
        return {**given, **fields}

    # Other actors

    def spawn(
        self,
        kind: type[Actor],
        *arguments: Any,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Awaitable[Ref]:
        """Start a child, like `ActorSystem.spawn`. This actor supervises it, and it ends with this incarnation."""
        check_loop("spawn")
        return self._cell.spawn_child(kind, arguments, kwargs, name, options)

    def watch(self, other: str | Ref) -> None:
        """Get a Terminated message when another actor or a pool, of this system or another, has ended."""
        check_loop("watch")
        self._cell.watch(other.address if isinstance(other, Ref) else other)

    def unwatch(self, other: str | Ref) -> None:
        check_loop("unwatch")
        self._cell.unwatch(other.address if isinstance(other, Ref) else other)

    def stop(self) -> None:
        """Stop this actor after the current message."""
        self._cell.stop_soon()

    # Handlers

    def become(self, *methods: Callable[..., Any]) -> None:
        """From the next message on, handle messages with these methods of the actor, each by the type of its parameter.

        This holds until the next `become` or `unbecome`, or until the incarnation ends.
        """
        if not methods:
            raise UsageError("become needs at least one method: `unbecome` restores those of the class")
        self._cell.become(methods)

    def unbecome(self) -> None:
        """Handle messages with the handlers of the class again."""
        self._cell.become(())

    def stash(self) -> None:
        """Put the current message aside until `unstash`; raises StashFull.

        It is not answered meanwhile. Stashed messages also return to the front when the incarnation ends.
        """
        if self.message is None:
            raise UsageError("no message is being handled: call stash inside a handler")
        self._cell.stash()

    def unstash(self) -> None:
        """Return the stashed messages to the front of the mailbox, in their order."""
        self._cell.unstash()

    # Time

    def schedule(self, delay_s: float, payload: object, *, every: bool = False, key: Hashable = None) -> Timer:
        """Send a message to this actor itself after a delay: once, or repeatedly with that delay between the messages.

        A timer with the `key` of an earlier one replaces it: the earlier one sends nothing more.
        """
        check_loop("schedule")
        return self._own_timers().start(delay_s, payload, key=key, period_s=delay_s if every else None)

    def schedule_at_rate(
        self, period_s: float, payload: object, *, first_s: float | None = None, key: Hashable = None
    ) -> Timer:
        """Send a message to this actor itself at a fixed rate. A late message does not delay the ones after it."""
        check_loop("schedule_at_rate")
        first_s = period_s if first_s is None else first_s
        return self._own_timers().start(first_s, payload, key=key, period_s=period_s, steady=True)

    def cancel_timer(self, key: Hashable) -> bool:
        """Cancel the timer with this key; False if there is none."""
        return self._timers is not None and self._timers.cancel(key)

    def timer(self, key: Hashable) -> Timer | None:
        """The timer with this key, if it is active."""
        return None if self._timers is None else self._timers.find(key)

    def set_receive_timeout(self, timeout_s: float | None) -> None:
        """Get a ReceiveTimeout whenever no message was handled for this long; None turns it off."""
        check_loop("set_receive_timeout")
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = None if timeout_s is None else QuietTimer(self._cell, timeout_s)

    def _own_timers(self) -> Timers:
        if self._timers is None:
            self._timers = Timers(self._cell)
        return self._timers

    def end(self) -> None:
        """Cancel the timers. Called when the incarnation has ended."""
        if self._timers is not None:
            self._timers.end()
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None


def check_loop(what: str) -> None:
    if asyncio._get_running_loop() is None:
        raise UsageError(f"context.{what} is for the event loop: a plain `def` handler uses context.blocking.{what}")
