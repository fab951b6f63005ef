"""The class of an actor and the arguments of its constructor. They are used again for each incarnation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import msgspec

from trunkline.actors.actor import Actor, Plan, plan_of
from trunkline.actors.process import InProcess
from trunkline.actors.settings import Keep
from trunkline.errors import UsageError

OPTIONS = frozenset(field.name for field in msgspec.structs.fields(Keep))


class ActorSpec(msgspec.Struct, frozen=True):
    kind: type[Actor]
    arguments: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    def split(self, options: dict[str, Any]) -> tuple[ActorSpec, dict[str, Any]]:
        """Pass those keywords of `spawn` to the constructor that are not options of Keep, if it accepts them.

        A keyword that neither accepts remains an option, and Keep raises an error for it.
        """
        extra = {name: value for name, value in options.items() if name not in OPTIONS}
        taken = _keywords(self.kind) if extra else None
        given = {name: value for name, value in extra.items() if taken is None or name in taken}
        if not given:
            return self, options
        twice = [name for name in given if name in self.kwargs]
        if twice:
            raise UsageError(
                f"{self.kind.__name__} gets {twice[0]!r} twice: pass it as a keyword or in kwargs, not both"
            )
        rest = {name: value for name, value in options.items() if name not in given}
        return ActorSpec(self.kind, self.arguments, {**self.kwargs, **given}), rest

    def plan(self, keep: Keep) -> tuple[Plan, Callable[[], Actor]]:
        """The handlers of the class, and a function that creates an incarnation."""
        plan = plan_of(self.kind)
        if keep.process:
            stand_in = copy(plan_of(InProcess))
            stand_in.name = plan.name
            return stand_in, functools.partial(InProcess, self.kind, self.arguments, dict(self.kwargs))
        if self.arguments or self.kwargs:
            return plan, functools.partial(self.kind, *self.arguments, **self.kwargs)
        return plan, self.kind


def _keywords(kind: type[Actor]) -> frozenset[str] | None:
    """The keywords that the constructor of a class accepts; None if it accepts any."""
    parameters = inspect.signature(kind).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in by_name)
