"""A broker on an engine, with the interface of every broker. A subclass adds its driver and its name."""

from __future__ import annotations

import abc
from typing import ClassVar

from msgspec.structs import replace

from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.adapter import EngineAdapter
from trunkline.brokers.engine.dead_letters import EngineDeadLetters
from trunkline.brokers.engine.directory import EngineDirectory
from trunkline.brokers.engine.driver import EngineDriver
from trunkline.brokers.engine.peers import Peers
from trunkline.brokers.engine.settings import EngineSettings, EngineUrl, from_url
from trunkline.brokers.engine.store import EngineStore
from trunkline.brokers.remote.broker import RemoteBroker
from trunkline.brokers.remote.feed import InboxFeed
from trunkline.brokers.remote.shared import SharedConnection
from trunkline.clock import World
from trunkline.delivery.options import Delivery
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscriber import Overflow
from trunkline.settings import Settings

MAX_WAITING = 512 * 1024
"""The default capacity of the inbox of a plain subscription. nats-py keeps as many. Unless the messages are small, the
limit in bytes is reached first."""
ALWAYS = frozenset({Feature.PRIORITY, Feature.ACKNOWLEDGEMENT})
"""Features that this process implements itself, whatever the engine."""
WITH_STORE = frozenset({Feature.GROUPS, Feature.DURABLE, Feature.STORED, Feature.CHANNELS})
"""Features that need an engine with a store."""


class EngineBroker(RemoteBroker):
    foreign_topics = True
    store: EngineStore
    options: ClassVar[frozenset[str]] = frozenset()
    """Options of the URL, in addition to the settings of every engine."""

    def __init__(
        self,
        url: str,
        world: World | None = None,
        settings: Settings | None = None,
        *,
        client: str = "bus",
        engine: EngineSettings | None = None,
    ) -> None:
        world, settings = world or World(), settings or Settings()
        where = from_url(url, engine, self.options)

        def adapter() -> EngineAdapter:
            return EngineAdapter(self.driver(where, client, world), world, where.settings)

        super().__init__(SharedConnection.of((url, where.settings, settings), adapter, settings), world, settings)
        assert isinstance(self.shared.adapter, EngineAdapter)
        self.adapter = self.shared.adapter
        self.url = self.adapter.url
        self.peers = Peers.of(self.adapter)
        self.peers.join(self)
        self.dead_letters: EngineDeadLetters = EngineDeadLetters(self.adapter, self.served, self.feeds)
        """The dead letters that the engine keeps."""
        self.store = EngineStore(self)
        self._directory = EngineDirectory.of(self.adapter, client, where.user)

    @staticmethod
    @abc.abstractmethod
    def driver(where: EngineUrl, client: str, world: World) -> EngineDriver:
        """The driver of this engine. Raises MissingExtra if its client library is not installed."""

    @property
    def directory(self) -> EngineDirectory | None:  # type: ignore[override]
        """None if the server is known to have no store."""
        return None if self.adapter.lacks(Feature.CHANNELS) else self._directory

    @property
    def features(self) -> frozenset[Feature]:  # type: ignore[override]
        """The features of the engine. Before the first connection: the features that such an engine can have."""
        return (self.adapter.driver.features if self.adapter.connects else WITH_STORE) | ALWAYS

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        plain = delivery.group is None and not delivery.durable and not delivery.reads_stored
        if plain and delivery.overflow in (Overflow.BLOCK, Overflow.REJECT):
            if delivery.capacity is not None:
                # An engine cannot make the publisher wait.
                self.require(Feature.BACKPRESSURE)
            # A message without room is dropped, counted and reported. The capacity is therefore larger than where
            # publishers wait.
            capacity = max(MAX_WAITING, self.settings.backpressure.max_pending)
            delivery = replace(delivery, capacity=capacity, overflow=Overflow.DROP_NEWEST)
        stream = super().subscribe(pattern, delivery)
        if plain:
            stream.inbox.ledger = self.dead_letters
        return stream

    async def flush(self) -> None:
        """See `Broker.flush`. Messages published after it reach every subscription that was made here before.

        Messages that were acknowledged before are not delivered again if this process is killed.
        """
        if self.feeds:
            await self.adapter.subscribed()
        await super().flush()
        await self.adapter.write_notes()

    def left(self, feed: InboxFeed) -> None:
        self.dead_letters.left(feed)

    async def before_release(self) -> None:
        if self.shared.users == 1:
            await self._directory.aclose()
        await self.dead_letters.aclose()
        self.peers.leave(self)
