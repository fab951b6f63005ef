"""Consuming from a channel: `async with bus.consume("orders", "billing-1") as messages`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

from trunkline.bus.subscription import Subscription
from trunkline.delivery.stream import Stream


class Consumption:
    """Registered at the channel while it lasts, and subscribed as the channel's contract says."""

    def __init__(self, attach: Callable[[], Awaitable[Subscription]], detach: Callable[[], Awaitable[object]]) -> None:
        self._attach = attach
        self._detach = detach
        self._stream: Stream | None = None

    async def __aenter__(self) -> Stream:
        subscription = await self._attach()
        try:
            self._stream = await subscription.open()
        except BaseException:
            await self._detach()
            raise
        return self._stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            await self._detach()
