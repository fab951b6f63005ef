"""Refuses messages above a rate: per topic, per sender, or both."""

from __future__ import annotations

from collections.abc import Callable

from trunkline.delivery.limits import Buckets, Rate
from trunkline.errors import InvalidSettings, RateLimited
from trunkline.hooks.hook import Attachment, Batch, Forward, Hook, Stage, each
from trunkline.message import Message


class RateLimit(Hook):
    stage = Stage.LIMIT

    def __init__(self, *, per_topic: Rate | None = None, per_sender: Rate | None = None) -> None:
        if per_topic is None and per_sender is None:
            raise InvalidSettings("a rate limit needs per_topic, per_sender, or both")
        self._topics = None if per_topic is None else Buckets(per_topic)
        self._senders = None if per_sender is None else Buckets(per_sender)
        self._now: Callable[[], float] | None = None
        self._check = each(self._allow)

    def attach(self, bus: Attachment) -> None:
        self._now = bus.now

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        await self._check(batch, forward)

    def _allow(self, message: Message) -> Message:
        assert self._now is not None, "the bus attaches its hooks"
        now = self._now()
        if self._topics is not None and (wait_s := self._topics.take(message.topic, now)) > 0:
            raise RateLimited(f"topic {message.topic!r}", wait_s)
        if self._senders is not None and (wait_s := self._senders.take(message.sender, now)) > 0:
            raise RateLimited(f"sender {message.sender!r}", wait_s)
        return message
