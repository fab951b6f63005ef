"""The store of a remote broker: the common part of a hub and an engine.

Subclasses add the access to stored messages.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from trunkline.brokers.broker import Feature
from trunkline.delivery.requests import Why
from trunkline.message import Message
from trunkline.topic import validate_topic

if TYPE_CHECKING:
    from trunkline.brokers.remote.broker import RemoteBroker


class RemoteStore(abc.ABC):
    local = None

    def __init__(self, broker: RemoteBroker) -> None:
        self._remote = broker

    async def last(self, topic: str, before: int | None = None) -> Message | None:
        """See `Store.last`. Raises HubUnavailable if the broker does not answer."""
        validate_topic(topic)
        await self._offers(Feature.STORED)
        return await self._last(topic, before)

    async def forget(self, name: str) -> bool:
        """See `Store.forget`. Raises HubUnavailable if the broker does not answer."""
        await self._offers(Feature.DURABLE)
        return await self._forget(name)

    async def _offers(self, feature: Feature) -> None:
        self._remote.check_open()
        # The features must be known before the request is sent: an older broker would not answer it.
        await self._remote.shared.adapter.ready()
        self._remote.require(feature)

    @abc.abstractmethod
    async def _last(self, topic: str, before: int | None) -> Message | None:
        """Called when the connection is live and the feature is available."""

    @abc.abstractmethod
    async def _forget(self, name: str) -> bool:
        """Called when the connection is live and the feature is available."""

    def recall_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        """Always empty: the orphans of this process are in memory, and a hub keeps its own."""
        return []

    def pause(self) -> None:
        return
