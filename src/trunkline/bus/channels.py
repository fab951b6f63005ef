"""Producing on and consuming from the channels of a hub."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Unpack

from trunkline.brokers.directory import Terms
from trunkline.bus.subscription import Subscription
from trunkline.delivery.stream import Stream
from trunkline.errors import UsageError
from trunkline.message import Fields
from trunkline.topic import is_wild, matches


class Consumption:
    """Registers a consumer for the duration of the block, and subscribes as the channel's contract defines."""

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

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            await self._detach()


class Production:
    """Registers a producer for the duration of the block."""

    def __init__(
        self,
        publish: Callable[..., Awaitable[str]],
        attach: Callable[[], Awaitable[Terms]],
        detach: Callable[[], Awaitable[object]],
    ) -> None:
        self._publish = publish
        self._attach = attach
        self._detach = detach

    async def __aenter__(self) -> Producer:
        return Producer(self._publish, (await self._attach()).pattern)

    async def __aexit__(self, *_: object) -> None:
        await self._detach()


class Producer:
    """Publishes on the topics of one channel."""

    def __init__(self, publish: Callable[..., Awaitable[str]], pattern: str) -> None:
        self._publish = publish
        self.pattern = pattern
        """The topics of the channel."""

    async def publish(self, payload: object = b"", *, topic: str | None = None, **fields: Unpack[Fields]) -> str:
        """As `bus.publish`, on the channel's topic. If the channel has several topics, `topic` selects one of them."""
        if topic is None:
            if is_wild(self.pattern):
                raise UsageError(f"the channel has the topics {self.pattern}: name one with topic=…")
            topic = self.pattern
        elif not matches(self.pattern, topic):
            raise UsageError(f"{topic!r} does not match the channel's topics, {self.pattern}")
        return await self._publish(topic, payload, **fields)
