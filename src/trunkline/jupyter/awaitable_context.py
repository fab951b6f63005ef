"""An object that is opened by `await`, or by `async with`, which also closes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class AwaitableContext(Generic[T]):
    def __init__(self, start: Coroutine[Any, Any, T], end: Callable[[T], Awaitable[None] | None]) -> None:
        self._start = start
        self._end = end
        self._opened: list[T] = []

    def __await__(self) -> Generator[Any, None, T]:
        return self._start.__await__()

    async def __aenter__(self) -> T:
        self._opened.append(await self._start)
        return self._opened[0]

    async def __aexit__(self, *_: object) -> None:
        for opened in self._opened:
            ended = self._end(opened)
            if ended is not None:
                await ended
