"""The actor: the base class of user code. Its system gives it an address, a mailbox and a life cycle."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from copy import copy
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from trunkline.errors import UsageError
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.actors.context import Context

F = TypeVar("F", bound=Callable[..., Any])

_TYPES = "__trunkline_handles__"

PLAIN: Final = frozenset({bytes, str, int, float, bool, type(None), list, dict, tuple, set, bytearray, memoryview})
"""Types of payloads that have no schema. All others are identified by their class."""


class Actor:
    """The base class of actors. Derive from it, and add handlers.

    A method with `@handles(Type)` gets messages whose payload is a `Type`; `receive` gets all others. The annotation of
    its parameter determines the argument: a type, no annotation for plain values, or Message for the message itself.
    The return value of a handler is the answer to a request. An `async def` runs in the event loop. A plain `def` runs
    in a thread, where it uses `self.context.blocking` to send and request. In both cases one message is handled at a
    time.

    An error that a handler raises ends this incarnation: the actor is restarted according to its supervision, with the
    arguments that were given to `spawn`. Hooks run in the event loop, never while a handler of the same actor runs.
    """

    context: Context
    """Sends messages, starts children and sets timers. Set before `starting`."""

    async def starting(self) -> None:
        """Called before the first message of an incarnation. An error is a failure; `spawn` raises it at the first
        start.
        """

    def receive(self, message: Any) -> Any:
        """Handles messages that match no other handler; `def` or `async def`. Without it, they become dead letters."""

    # If a class has these two methods, its state survives a restart of the actor, and with a journal also a restart of
    # the program:
    #
    #     def snapshot(self) -> State: ...
    #     def restore(self, state: State) -> None: ...

    async def failed(self, error: BaseException, message: Message | None) -> None:
        """Called when this incarnation has ended: it failed on this message, or another actor failed whose failure ends
        it too.

        It is called after the handler has ended. An error that it raises is logged.
        """

    async def stopped(self) -> None:
        """Called when the actor has ended: it was stopped, or it failed and is not restarted (then after `failed`).

        It is called once, on the last incarnation, when its children have ended. An error that it raises is logged.
        """


def handles(*types: type) -> Callable[[F], F]:
    """Declares which payloads a method of an actor handles; without types, the annotation of its parameter is used."""

    def mark(function: F) -> F:
        setattr(function, _TYPES, types)
        return function

    return mark


class ActorHandler:
    """A handler method of an actor class: the argument that it takes, and how it runs."""

    __slots__ = ("accepts", "function", "in_thread", "wants_message", "wants_payload")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.in_thread = not inspect.iscoroutinefunction(function)
        wanted = _wanted(function)
        self.wants_message = wanted is Message
        self.wants_payload = wanted
        self.accepts = _names_of(wanted)
        """The schemas of the classes that it accepts; None if it accepts any."""

    def takes(self, schema: str | None) -> bool:
        """Whether a payload of this schema may be decoded as its argument. A schema that is a bare name is always
        accepted.
        """
        return self.accepts is None or schema is None or schema in self.accepts or "." not in schema


class Plan:
    """The handlers of one class of actors, found once."""

    __slots__ = ("_bare", "by_schema", "default", "hooks", "name", "state")

    def __init__(self, kind: type[Actor]) -> None:
        self.name = kind.__name__
        self.by_schema: dict[str, ActorHandler] = {}
        self._bare: dict[str, ActorHandler | None] = {}
        """Handlers by the bare name of a class, for senders that do not have the class; None if two classes share the
        name."""
        for name in dir(kind):
            function = inspect.getattr_static(kind, name)
            types = getattr(function, _TYPES, None)
            if types is not None:
                handler = ActorHandler(function)
                for each in types or (handler.wants_payload,):
                    self._add(each, handler)
        own = kind.receive is not Actor.receive
        self.default: ActorHandler | None = ActorHandler(kind.receive) if own else None
        if not own and len(self.by_schema) == 1:
            # It handles only one type: plain values are decoded as that type.
            (self.default,) = self.by_schema.values()
        self.hooks = frozenset(name for name in _HOOKS if getattr(kind, name) is not getattr(Actor, name))
        """The hooks that the class overrides. The others need not be called."""
        self.state: Any = None
        """The type of its state, if it has `snapshot` and `restore`."""
        if (missing := [name for name in ("snapshot", "restore") if not hasattr(kind, name)]) == []:
            self.state = _wanted(kind.restore)  # type: ignore[attr-defined]
        elif len(missing) == 1:
            raise UsageError(
                f"{self.name} has no `{missing[0]}`: an actor with a saved state needs `snapshot` and `restore`"
            )

    def becoming(self, methods: Sequence[Callable[..., Any]]) -> Plan:
        """The plan of an actor that handles messages with these methods, and no others."""
        plan = copy(self)
        plan.by_schema, plan._bare, plan.default = {}, {}, None
        for method in methods:
            function = getattr(method, "__func__", None)
            if function is None:
                raise UsageError(f"become needs methods of the actor, not {method!r}")
            handler = ActorHandler(function)
            for each in getattr(function, _TYPES, None) or _classes_of(handler.wants_payload):
                plan._add(each, handler)
            if handler.accepts is None or len(methods) == 1:
                plan.default = handler
        return plan

    def _add(self, kind: Any, handler: ActorHandler) -> None:
        if not isinstance(kind, type):
            raise UsageError(f"{self.name}: @handles needs a class, not {kind!r}")
        schema, bare = schema_of(kind), kind.__name__
        if schema in self.by_schema:
            raise UsageError(f"{self.name} has two handlers for {_shown(schema)}")
        self.by_schema[schema] = handler
        self._bare[bare] = None if bare in self._bare else handler

    def choose(self, message: Message) -> ActorHandler | None:
        schema = message.schema
        if schema is None:
            return self.default
        handler = self.by_schema.get(schema)
        if handler is None and "." not in schema:
            handler = self._bare.get(schema)
        if handler is None:
            handler = self.default
            if self.by_schema or handler is None or not handler.takes(schema):
                return self._inherited(schema)
        return handler

    def _inherited(self, schema: str) -> ActorHandler | None:
        """The handler of a base class. The payload is decoded as its own class, which must already be imported in this
        process.
        """
        rest = self.default if self.default is not None and self.default.takes(schema) else None
        kind = _class_named(schema)
        if kind is None:
            return rest
        for base in kind.__mro__[1:]:
            name = schema_of(base)
            handler = self.by_schema.get(name)
            if handler is None and self.default is not None and self.default.accepts is not None:
                handler = self.default if name in self.default.accepts else None
            if handler is not None:
                self.by_schema[schema] = inherited = copy(handler)
                inherited.wants_payload = Message if handler.wants_message else kind
                return inherited
        return rest

    def missing(self, message: Message) -> str:
        """The reason why there is no handler for a message."""
        what = message.schema or "plain values"
        bare = what.rpartition(".")[2]
        what = _shown(what)
        twins = [schema for schema in self._schemas() if schema.rpartition(".")[2] == bare and schema != message.schema]
        if twins:
            return (
                f"{self.name} has no handler for {what}, only for {' and '.join(twins)}: use the same class on both "
                "sides, or give both the same `__schema__`"
            )
        return f"{self.name} has no handler for {what}: define `receive`, or a method with @handles"

    def _schemas(self) -> list[str]:
        named = self.default.accepts if self.default is not None else None
        return sorted({*self.by_schema, *(named or ())})


_HOOKS = ("starting", "failed", "stopped")


_plans: WeakKeyDictionary[type[Actor], Plan] = WeakKeyDictionary()


def plan_of(kind: type[Actor]) -> Plan:
    plan = _plans.get(kind)
    if plan is None:
        plan = _plans[kind] = Plan(kind)
    return plan


def schema_of(kind: type) -> str:
    """The name of a payload class in messages: its `__schema__`, or its module and qualified name."""
    own: str | None = kind.__dict__.get("__schema__")
    return own or f"{kind.__module__}.{kind.__qualname__}"


def _shown(schema: str) -> str:
    bare = schema.rpartition(".")[2]
    return schema if bare == schema else f"{bare} ({schema})"


def _class_named(schema: str) -> type | None:
    """The class with this schema, if its module is already imported."""
    tokens = schema.split(".")
    for count in range(len(tokens) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(tokens[:count]))
        if found is not None:
            for token in tokens[count:]:
                found = getattr(found, token, None)
            return found if isinstance(found, type) and schema_of(found) == schema else None
    return None


def _classes_of(wanted: Any) -> tuple[type, ...]:
    """The classes that a payload may have; none if it may be anything, or is a plain value."""
    if get_origin(wanted) in (Union, UnionType):
        each = [_classes_of(part) for part in get_args(wanted)]
        return () if () in each else tuple(kind for kinds in each for kind in kinds)
    # Any is a class, too.
    says_nothing = wanted in PLAIN or wanted in (Any, object, Message) or get_origin(wanted) is not None
    return (wanted,) if isinstance(wanted, type) and not says_nothing else ()


def _names_of(wanted: Any) -> frozenset[str] | None:
    return frozenset(map(schema_of, _classes_of(wanted))) or None


def _wanted(function: Callable[..., Any]) -> Any:
    """The annotation of its only required parameter besides `self`."""
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
