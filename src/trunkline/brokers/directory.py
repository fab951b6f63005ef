"""The directory of a broker: the seam to channels, their contracts, their schemas, and who is on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from trunkline.delivery.options import DeliveryOptions
from trunkline.wire.control import ChannelInfo, Config, DiscoveryResponse, Qos, SchemaInfo


class Terms(NamedTuple):
    """What a channel says to its consumers: the topics, and how they are delivered unless asked otherwise."""

    pattern: str
    options: DeliveryOptions


class Directory(Protocol):
    """The `directory` of a broker. One that knows no channels has None there.

    Where the directory cannot be reached, what would register returns False and what would find returns None.
    """

    async def attach(
        self, channel: str, consumer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Terms:
        """Register a consumer of a channel, and return its contract. Raises HubUnavailable, and HubRefused."""

    async def unregister_consumer(self, channel: str, consumer_id: str) -> bool: ...

    async def register_consumer(
        self, channel: str, consumer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """As `attach`, without the contract: also before there is a directory to be reached."""

    async def register_producer(
        self,
        channel: str,
        *,
        schema: Any = None,
        version: str = "",
        compatibility: str = "",
        config: Config | None = None,
        shm_name: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> bool:
        """Register a producer; the first one of a channel makes it."""

    async def attach_producer(
        self, channel: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Terms:
        """As `attach`, for a producer."""

    async def unregister_producer(self, channel: str) -> bool: ...

    async def find(self, channel: str, *, schema: Any = None) -> DiscoveryResponse | None:
        """Who produces on a channel, and where its data is; None if nobody is known to. Raises HubRefused."""

    async def create_channel(
        self, channel: str, *, pattern: str = "", schema: Any = None, qos: Qos | None = None, description: str = ""
    ) -> bool: ...

    async def destroy_channel(self, channel: str) -> bool: ...

    async def channels(self, pattern: str = ">") -> list[ChannelInfo] | None: ...

    async def describe(self, channel: str) -> ChannelInfo | None: ...

    async def put_schema(
        self, name: str, schema: Any, version: str = "", compatibility: str = ""
    ) -> SchemaInfo | None: ...

    async def get_schema(self, name: str = "", version: str = "", *, hash: str = "") -> SchemaInfo | None: ...

    async def schemas(self, name: str = "") -> list[SchemaInfo] | None: ...
