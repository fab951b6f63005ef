"""The context: an actor's way to others. It publishes, and resolves no addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Unpack

from trunkline.actors.ref import PLAIN, Ref
from trunkline.message import Fields, Message
from trunkline.topic import endpoint

if TYPE_CHECKING:
    from trunkline.actors.actor import Actor
    from trunkline.actors.cell import Cell


class Timer:
    """A message to come; `cancel` it. It ends with the incarnation that set it."""

    __slots__ = ("_handle",)

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, handle: asyncio.TimerHandle) -> None:
        self._handle = handle

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def active(self) -> bool:
        return self._handle is not None


class Context:
    """Belongs to one incarnation of an actor."""

    __slots__ = ("_cell", "_timers", "message")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._timers: set[Timer] | None = None
        self.message: Message | None = None
        """The one that is being handled."""

    @property
    def me(self) -> Ref:
        return self._cell.ref

    @property
    def address(self) -> str:
        return self._cell.ref.address

    @property
    def sender(self) -> Ref | None:
        """Who has sent what is being handled, if that is an actor."""
        message = self.message
        return Ref(self._cell.system.bus, message.sender) if message is not None and message.sender else None

    # Publishing

    def send(self, to: str | Ref, payload: object = b"", **fields: Unpack[Fields]) -> Awaitable[str]:
        """Send to an address; its id. The sender is this actor."""
        given = self._fields(payload, fields)
        address = to.address if isinstance(to, Ref) else to
        return self._cell.system.bus.send(address, payload, **given)

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Awaitable[str]:
        """Publish on any topic of the bus."""
        return self._cell.system.bus.publish(topic, payload, **self._fields(payload, fields))

    async def request(self, to: str | Ref, payload: object = b"", **options: Any) -> Any:
        """Ask another actor, and wait: nothing else is handled here meanwhile. Raises RequestTimeout."""
        address = to.address if isinstance(to, Ref) else to
        options = {**self._fields(payload, {}), **options}
        return await self._cell.system.bus.request(endpoint(address), payload, **options)

    async def try_request(self, to: str | Ref, payload: object = b"", **options: Any) -> Any:
        """Like `request`, but None if no answer comes in time."""
        address = to.address if isinstance(to, Ref) else to
        options = {**self._fields(payload, {}), **options}
        return await self._cell.system.bus.try_request(endpoint(address), payload, **options)

    def _fields(self, payload: object, fields: Fields) -> Fields:
        given: Fields = {"sender": self.address}
        if payload.__class__ not in PLAIN:
            given["schema"] = payload.__class__.__name__
        if self.message is not None:
            given["correlation_id"] = self.message.correlation_id or self.message.id
        return {**given, **fields}

    # Others

    async def spawn(self, kind: type[Actor], *arguments: Any, name: str | None = None, **options: Any) -> Ref:
        """Start a child: this actor supervises it, and it ends with this incarnation."""
        return await self._cell.system.spawn_below(self._cell, kind, arguments, name, options)

    def watch(self, other: str | Ref) -> None:
        """Be told, by a Terminated, when another actor of this system has ended for good."""
        self._cell.system.watch(self._cell, other.address if isinstance(other, Ref) else other)

    def unwatch(self, other: str | Ref) -> None:
        self._cell.system.unwatch(self._cell, other.address if isinstance(other, Ref) else other)

    def stop(self) -> None:
        """End this actor after what is being handled now."""
        self._cell.stop_soon()

    # Time

    def schedule(self, delay_s: float, payload: object, *, every: bool = False) -> Timer:
        """Send something to this actor itself after a while, once, or again and again."""
        timer = Timer()
        if self._timers is None:
            self._timers = set()
        self._timers.add(timer)
        loop = asyncio.get_running_loop()

        def ring() -> None:
            if every:
                timer.arm(loop.call_later(delay_s, ring))
            else:
                timer.cancel()
                if self._timers is not None:
                    self._timers.discard(timer)
            self._cell.system.background(self._cell.ref.tell(payload, sender=self.address))

        timer.arm(loop.call_later(delay_s, ring))
        return timer

    def end(self) -> None:
        """The incarnation is over."""
        if self._timers is not None:
            for timer in self._timers:
                timer.cancel()
            self._timers = None
