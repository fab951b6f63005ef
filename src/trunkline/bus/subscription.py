"""A subscription: `async with bus.subscribe(…) as messages`. Inside, the next publish is received."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from trunkline.delivery.stream import Stream
from trunkline.errors import UsageError


class Subscription:
    """Opens a stream on entry and closes it on exit."""

    def __init__(self, open_stream: Callable[[], Stream]) -> None:
        self._open_stream = open_stream
        self._stream: Stream | None = None

    async def open(self) -> Stream:
        """Subscribe without a block; `await stream.aclose()` ends it."""
        stream = self._open_stream()
        try:
            await stream.opened()
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def _not_like_this(self, *_: object) -> NoReturn:
        raise UsageError(
            "a subscription must be entered: write `async with bus.subscribe(...) as messages:`,"
            " and inside it `async for message in messages:`"
        )

    __enter__ = __await__ = __aiter__ = _not_like_this

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Stream:
        self._stream = await self.open()
        return self._stream

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            await self._stream.aclose()
