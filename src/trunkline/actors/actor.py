"""The actor: what people write. An address, a mailbox and a life are given to it; it handles one message at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints
from weakref import WeakKeyDictionary

from trunkline.errors import UsageError
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.actors.context import Context

F = TypeVar("F", bound=Callable[..., Any])

_TYPES = "__trunkline_handles__"


class Actor:
    """Derive from it, and give it handlers.

    A method with `@handles(Type)` gets messages whose payload is a `Type`; `receive` gets all others, as its parameter
    is annotated: a type, nothing for plain values, or Message for the message itself. What a handler returns answers
    a request. An `async def` runs in the event loop, a plain `def` in a thread; in either case one at a time.

    An error that a handler raises ends this incarnation: the actor is started anew as its supervision says, with what
    its constructor was given at `spawn`.
    """

    context: Context
    """Its way to others. Set before `starting`."""

    async def starting(self) -> None:
        """Before the first message of an incarnation. Raising is a failure like any other."""

    def receive(self, message: Any) -> Any:
        """A message for which no other handler is there; `def` or `async def`. Not written, it is a dead letter."""

    # With these two, its state survives a restart; with a journal behind the bus, also that of the program:
    #
    #     def snapshot(self) -> State: ...
    #     def restore(self, state: State) -> None: ...

    async def failed(self, error: BaseException, message: Message | None) -> None:
        """This incarnation has failed, over this message; the next one will not be this object. Must not raise."""

    async def stopped(self) -> None:
        """It was stopped, and will not be started anew. Must not raise."""


def handles(*types: type) -> Callable[[F], F]:
    """Say which payloads a method of an actor handles; without types, what its parameter is annotated with."""

    def mark(function: F) -> F:
        setattr(function, _TYPES, types)
        return function

    return mark


class ActorHandler:
    """A method of an actor's class: what it wants, and how it runs."""

    __slots__ = ("function", "in_thread", "wants_message", "wants_payload")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.in_thread = not inspect.iscoroutinefunction(function)
        wanted = _wanted(function)
        self.wants_message = wanted is Message
        self.wants_payload = wanted


class Plan:
    """The handlers of one class of actors, found once."""

    __slots__ = ("by_name", "default", "hooks", "name", "state")

    def __init__(self, kind: type[Actor]) -> None:
        self.name = kind.__name__
        self.by_name: dict[str, ActorHandler] = {}
        for name in dir(kind):
            function = inspect.getattr_static(kind, name)
            types = getattr(function, _TYPES, None)
            if types is not None:
                handler = ActorHandler(function)
                for each in types or (handler.wants_payload,):
                    self._add(each, handler)
        own = kind.receive is not Actor.receive
        self.default: ActorHandler | None = ActorHandler(kind.receive) if own else None
        if not own and len(self.by_name) == 1:
            # It knows one kind of messages: all that come are meant to be of that kind.
            (self.default,) = self.by_name.values()
        self.hooks = frozenset(name for name in _HOOKS if getattr(kind, name) is not getattr(Actor, name))
        """Those that it has of its own: the others need not be called."""
        self.state: Any = None
        """The type of its state, if it remembers one."""
        if (missing := [name for name in ("snapshot", "restore") if not hasattr(kind, name)]) == []:
            self.state = _wanted(kind.restore)  # type: ignore[attr-defined]
        elif len(missing) == 1:
            raise UsageError(
                f"{self.name} has no `{missing[0]}`: an actor that remembers needs `snapshot` and `restore`"
            )

    def _add(self, kind: Any, handler: ActorHandler) -> None:
        if not isinstance(kind, type):
            raise UsageError(f"{self.name}: @handles needs a class, not {kind!r}")
        if kind.__name__ in self.by_name:
            raise UsageError(f"{self.name} has two handlers for {kind.__name__}: messages are told apart by that name")
        self.by_name[kind.__name__] = handler

    def choose(self, message: Message) -> ActorHandler | None:
        schema = message.schema
        return self.default if schema is None else self.by_name.get(schema, self.default)


_HOOKS = ("starting", "failed", "stopped")


_plans: WeakKeyDictionary[type[Actor], Plan] = WeakKeyDictionary()


def plan_of(kind: type[Actor]) -> Plan:
    plan = _plans.get(kind)
    if plan is None:
        plan = _plans[kind] = Plan(kind)
    return plan


def _wanted(function: Callable[..., Any]) -> Any:
    """The annotation of its one parameter beside self."""
    parameters = [
        parameter
        for parameter in list(inspect.signature(function).parameters.values())[1:]
        if parameter.default is parameter.empty
    ]
    if len(parameters) != 1:
        raise UsageError(f"{function.__qualname__} must take one value, the payload or the Message")
    try:
        return get_type_hints(function).get(parameters[0].name, Any)
    except NameError as error:
        raise UsageError(
            f"cannot find the type {error.name!r} that {function.__qualname__} is annotated with: "
            "define it at the top of its module"
        ) from error
