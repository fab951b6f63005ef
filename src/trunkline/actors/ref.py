"""A reference to an actor: everything needed to send it messages, in whatever process it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, Unpack, overload

from trunkline.actors.actor import PLAIN, schema_of
from trunkline.message import Fields
from trunkline.topic import endpoint

T = TypeVar("T")


class Way(Protocol):
    """Sends messages to actors: a bus, or its counterpart in the process of an actor."""

    def publish(self, topic: str, payload: object = ..., **fields: Unpack[Fields]) -> Awaitable[str]: ...

    def send(self, to: str, payload: object = ..., **fields: Unpack[Fields]) -> Awaitable[str]: ...

    @property
    def request(self) -> Callable[..., Awaitable[Any]]: ...

    @property
    def try_request(self) -> Callable[..., Awaitable[Any]]: ...


class Ref:
    """The address of an actor, and the bus that reaches it."""

    __slots__ = ("_bus", "_publish", "address", "topic")

    def __init__(self, bus: Way, address: str) -> None:
        self._bus = bus
        self._publish = bus.publish
        self.address = address
        self.topic = endpoint(address)

    def tell(self, payload: object = b"", **fields: Unpack[Fields]) -> Awaitable[str]:
        """Send a message; return its id. When this returns, the message is in the mailbox, or on its way to another
        process.

        If the mailbox is full, it raises InboxFull or waits, depending on the options of the actor.
        """
        if not fields and (type(payload) is bytes or payload.__class__ in PLAIN):
            # Without keywords, CPython need not build and unpack a dictionary for them. Called from a local name, it
            # does not look for a method first.
            publish = self._publish
            return publish(self.topic, payload)
        if payload.__class__ in PLAIN:
            return self._publish(self.topic, payload, **fields)
        named: Fields = {"schema": schema_of(payload.__class__), **fields}
        return self._publish(self.topic, payload, **named)

    @overload
    async def ask(self, payload: object = ..., *, timeout_s: float | None = ..., **fields: Unpack[Fields]) -> Any: ...
    @overload
    async def ask(
        self, payload: object = ..., *, reply: type[T], timeout_s: float | None = ..., **fields: Unpack[Fields]
    ) -> T: ...
    async def ask(
        self, payload: object = b"", *, reply: Any = Any, timeout_s: float | None = None, **fields: Unpack[Fields]
    ) -> Any:
        """Send a request, and return the answer as a `reply`. Raises RequestTimeout, or RequestFailed if the actor
        failed.
        """
        if payload.__class__ not in PLAIN:
            fields = {"schema": schema_of(payload.__class__), **fields}
        return await self._bus.request(self.topic, payload, reply=reply, timeout_s=timeout_s, **fields)

    async def try_ask(self, payload: object = b"", **options: Any) -> Any:
        """Like `ask`, but returns None if no answer arrives in time."""
        if payload.__class__ not in PLAIN:
            options = {"schema": schema_of(payload.__class__), **options}
        return await self._bus.try_request(self.topic, payload, **options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.address == self.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"Ref({self.address!r})"


def address_of(ref: Ref | str) -> str:
    return ref.address if isinstance(ref, Ref) else ref
