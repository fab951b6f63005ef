"""Handlers: how a function gets its arguments from a message, by its annotations."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, get_type_hints

from trunkline import codec
from trunkline.errors import UsageError
from trunkline.message import Message


def check_pattern_given(pattern: object) -> None:
    """Raises UsageError if a decorator was used without its pattern."""
    if callable(pattern):
        raise UsageError(
            f'`on` needs a pattern: write @bus.on("orders.*") above {getattr(pattern, "__name__", pattern)}'
        )


class Call:
    """A function with the types of its arguments: `arguments` reads them from a message, `run` calls it with them."""

    __slots__ = ("_function", "_threads", "_wanted", "read_msgpack", "run", "takes_bytes")

    def __init__(self, function: Callable[..., Any], wanted: list[Any], threads: Executor) -> None:
        self._function = function
        self._threads = threads
        self._wanted = wanted
        self.takes_bytes = wanted in ([bytes], [Any])
        """Whether a payload of raw bytes is passed unchanged as the only argument."""
        takes_payload = len(wanted) == 1 and wanted[0] is not Message
        self.read_msgpack = codec.reader(codec.MSGPACK, wanted[0]) if takes_payload else None
        """Like `arguments`, if a MessagePack payload is the only argument. None if there are other arguments."""
        self.run: Callable[..., Awaitable[Any]] = function if is_async(function) else self._run_in_thread

    def arguments(self, message: Message, max_bytes: int) -> list[Any]:
        """Decode the arguments. Raises PayloadError if the payload does not match the annotations of the function."""
        return [message if hint is Message else message.decode(hint, max_bytes=max_bytes) for hint in self._wanted]

    async def _run_in_thread(self, *arguments: Any) -> Any:
        call = functools.partial(copy_context().run, self._function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def bind(function: Callable[..., Any], threads: Executor) -> Call:
    """Read the parameters of a function. A plain function will run in one of the threads.

    A parameter annotated `Message` gets the message itself; one other parameter gets the payload, as its annotated type
    or as plain values; parameters with a default keep it. Raises UsageError for a function with any other required
    parameter.
    """
    parameters = _parameters(function)
    hints = _hints(function, parameters)
    wanted: list[Any] = [hints.get(parameter.name, Any) for parameter in parameters]
    if len([hint for hint in wanted if hint is not Message]) > 1:
        raise UsageError(
            f"{name_of(function)} takes {len(wanted)} values, and a message has one payload: "
            "take the payload, the Message, or both"
        )
    return Call(function, wanted, threads)


def is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.replace("<locals>.", "").rpartition(".")[2] if "<locals>" in name else name


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    given = inspect.signature(function).parameters.values()
    parameters = [
        parameter
        for parameter in given
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if any(parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty for parameter in given):
        raise UsageError(f"{name_of(function)} has a keyword-only argument without a default: give it a default")
    return parameters


def _hints(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target)
    except NameError as error:
        plain = {p.name: p.annotation for p in parameters if not isinstance(p.annotation, str)}
        if len(plain) == len(parameters):
            return {name: hint for name, hint in plain.items() if hint is not inspect.Parameter.empty}
        raise UsageError(
            f"cannot find the type {error.name!r} that {name_of(function)} is annotated with: "
            "define it at the top of its module"
        ) from error
