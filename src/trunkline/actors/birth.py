"""What an actor is made of: its class and what its constructor is given, again for each incarnation."""

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


class Birth(msgspec.Struct, frozen=True):
    kind: type[Actor]
    arguments: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    def split(self, options: dict[str, Any]) -> tuple[Birth, dict[str, Any]]:
        """Take those keywords of `spawn` for the constructor that are no options of Keep, if it takes them.

        What neither takes stays an option, and is refused there.
        """
        extra = {name: value for name, value in options.items() if name not in OPTIONS}
        taken = _keywords(self.kind) if extra else None
        given = {name: value for name, value in extra.items() if taken is None or name in taken}
        if not given:
            return self, options
        twice = [name for name in given if name in self.kwargs]
        if twice:
            raise UsageError(f"{self.kind.__name__} gets {twice[0]!r} twice: as a keyword and in kwargs")
        rest = {name: value for name, value in options.items() if name not in given}
        return Birth(self.kind, self.arguments, {**self.kwargs, **given}), rest

    def plan(self, keep: Keep) -> tuple[Plan, Callable[[], Actor]]:
        """Its handlers, and how an incarnation is made."""
        plan = plan_of(self.kind)
        if keep.process:
            stand_in = copy(plan_of(InProcess))
            stand_in.name = plan.name
            return stand_in, functools.partial(InProcess, self.kind, self.arguments, dict(self.kwargs))
        if self.arguments or self.kwargs:
            return plan, functools.partial(self.kind, *self.arguments, **self.kwargs)
        return plan, self.kind


def _keywords(kind: type[Actor]) -> frozenset[str] | None:
    """What its constructor takes by name; None if that is anything."""
    parameters = inspect.signature(kind).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in by_name)
