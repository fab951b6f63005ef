"""The hub as a broker: the same interface as the one in memory, over a connection to another process."""

from __future__ import annotations

from typing import Any

import msgspec

from trunkline.brokers.broker import Feature
from trunkline.brokers.hub.adapter import HubAdapter
from trunkline.brokers.hub.connection import Connection, EmbeddedHub
from trunkline.brokers.hub.dead_letters import HubDeadLetters
from trunkline.brokers.hub.directory import HubDirectory
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.brokers.hub.store import HubStore
from trunkline.brokers.remote.broker import RemoteBroker
from trunkline.brokers.remote.feed import InboxFeed
from trunkline.brokers.remote.shared import SharedConnection
from trunkline.clock import World
from trunkline.errors import UsageError
from trunkline.settings import Settings
from trunkline.topic import reply_topic
from trunkline.wire import control
from trunkline.wire.snapshot import HubSnapshot


class HubBroker(RemoteBroker):
    name = "hub"
    directory: HubDirectory
    store: HubStore

    def __init__(
        self,
        url: str,
        world: World | None = None,
        settings: Settings | None = None,
        *,
        client: str = "bus",
        connection: ConnectionSettings | None = None,
        embed: EmbeddedHub | None = None,
    ) -> None:
        world, settings, how = world or World(), settings or Settings(), connection or ConnectionSettings()

        def make() -> HubAdapter:
            return HubAdapter(Connection(url, client, world, how), settings.max_message_bytes)

        shared = SharedConnection.of((url, how, settings), make, settings)
        assert isinstance(shared.adapter, HubAdapter)
        self.url = url
        self.adapter = shared.adapter
        self.connection = self.adapter.connection
        if embed is not None:
            self._share(embed)
        super().__init__(shared, world, settings)
        self.directory = HubDirectory.of(self.connection)
        self.dead_letters: HubDeadLetters = HubDeadLetters(self.connection, self.served, self.feeds)
        """The dead letters that the hub keeps."""
        self.store = HubStore(self)

    def _share(self, embed: EmbeddedHub) -> None:
        """Buses on one connection share one embedded hub: the first configures it."""
        if self.connection.embedded is None:
            self.connection.embedded = embed
        elif embed.has_journal:
            raise UsageError(
                f"another bus in this program embeds the hub at {self.url}: pass `journal` there, and only there"
            )

    @property
    def features(self) -> frozenset[Feature]:  # type: ignore[override]
        """The features of the hub; before it has reported them, all but rules."""
        welcome = self.connection.welcome
        if welcome is None:
            return frozenset(Feature) - {Feature.RIGHTS}
        offered = frozenset(feature for feature in Feature if feature.value in welcome.features)
        # Every hub has a directory, but older ones do not list it as a feature.
        return offered | {Feature.CHANNELS}

    # Subscribing

    def reply_topic(self) -> str:
        secret = self.world.secret()
        topic = reply_topic(secret)
        self.adapter.secrets[topic] = secret
        return topic

    def left(self, feed: InboxFeed) -> None:
        self.dead_letters.left(feed)

    # Watching

    async def begin(self) -> None:
        if self.connection.embedded is not None:
            # From now on, the hub is reachable for others.
            await self.connection.ready()

    async def ping(self) -> float:
        """The round-trip time to the hub in seconds. Raises HubUnavailable if it does not answer."""
        await self.connection.ready()
        # The clock of the event loop is not used, because that of uvloop has a resolution of a millisecond.
        began_ns = self.world.time_ns()
        await self.connection.sync()
        return (self.world.time_ns() - began_ns) / 1e9

    def metrics(self) -> ConnectionMetrics:
        """Counters of the connection."""
        connection, protocol, outbox = self.connection, self.connection.protocol, self.shared.outbox
        return ConnectionMetrics(
            url=connection.url,
            live=connection.live,
            connects=protocol.connects,
            last_failure=protocol.last_failure,
            published=outbox.confirmed,
            delivered=protocol.delivered,
            lost=outbox.lost_messages,
            missed=self.shared.missed,
            malformed=protocol.malformed + self.adapter.malformed,
            bytes_in=protocol.bytes_in,
            bytes_out=connection.bytes_out,
            shared=connection.memory.published,
            not_shared=connection.memory.inline,
            mapped=connection.memory.delivered,
            waiting=sum(lane.in_flight for lane in outbox.lanes.values()),
            backlog_bytes=connection.backlog,
        )

    async def hub_stats(self) -> dict[str, Any]:
        """Counters of the hub; raises HubUnavailable if it does not answer."""
        answer = await self.connection.ask(lambda asked: control.Stats(id=asked))
        assert isinstance(answer, control.StatsAnswer)
        return answer.stats

    async def snapshot(self, rows: int = 1000) -> HubSnapshot:
        """The clients and subscribers of the hub, with their counters. Needs the right to administer."""
        answer = await self.connection.ask(lambda asked: control.SnapshotRequest(id=asked, rows=rows))
        assert isinstance(answer, control.SnapshotAnswer)
        return answer.snapshot

    async def before_release(self) -> None:
        if self.shared.users == 1:
            self.directory.withdraw()
        await self.dead_letters.aclose()


class ConnectionMetrics(msgspec.Struct, frozen=True):
    """Counters of a connection since it was first opened."""

    url: str
    live: bool
    connects: int
    last_failure: str
    published: int
    """Messages sent to the hub."""
    delivered: int
    """Messages that the hub has delivered."""
    lost: int
    """Messages that were published on a connection that ended before the hub had confirmed them."""
    missed: int
    """Messages of others for subscriptions here that never arrived."""
    malformed: int
    """Frames of the hub that could not be read."""
    bytes_in: int
    bytes_out: int
    """Bytes on the wire, without those in shared memory."""
    shared: int
    """Messages whose payload was sent to the hub through shared memory."""
    not_shared: int
    """Large messages that were sent inline, because no shared memory was free."""
    mapped: int
    """Messages that the hub has delivered with their payload in shared memory."""
    waiting: int
    """Messages that the hub has not confirmed yet."""
    backlog_bytes: int
