"""The directory of a broker: the interface to channels, their contracts, schemas and members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from trunkline.delivery.options import DeliveryOptions
from trunkline.delivery.pending import Failures
from trunkline.errors import HubRefused, SchemaBroken
from trunkline.message import Message
from trunkline.schema import Checker, hash_of
from trunkline.wire.control import ChannelInfo, Config, DiscoveryResponse, Qos, SchemaInfo


class Terms(NamedTuple):
    """The contract of a channel for its consumers: the topics, and the default options of delivery."""

    pattern: str
    options: DeliveryOptions


class Directory(Protocol):
    """The `directory` of a broker; None for a broker without channels.

    While the directory cannot be reached, registrations return False and lookups return None.
    """

    async def attach(
        self, channel: str, consumer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Terms:
        """Register a consumer of a channel, and return its contract. Raises HubUnavailable, and HubRefused."""

    async def unregister_consumer(self, channel: str, consumer_id: str) -> bool: ...

    async def register_consumer(
        self, channel: str, consumer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """As `attach`, without the contract. It can be called before the directory can be reached."""

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
        """Register a producer. The first producer of a channel creates the channel."""

    async def attach_producer(
        self, channel: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Terms:
        """As `attach`, for a producer."""

    async def unregister_producer(self, channel: str) -> bool: ...

    async def find(self, channel: str, *, schema: Any = None) -> DiscoveryResponse | None:
        """The producers of a channel, and the location of its data; None if no producer is known. Raises HubRefused."""

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


def checked(found: DiscoveryResponse, schema: Any) -> DiscoveryResponse:
    """The found channel. Raises HubRefused if it has another schema than `schema`."""
    if schema is not None and (expected := hash_of(schema)) != found.schema_hash:
        text = f"schemas differ on {found.channel}: it has {found.schema_hash or 'none'}, expected is {expected}"
        raise HubRefused("schema_mismatch", text)
    return found


def terms_of(info: ChannelInfo) -> Terms:
    options: DeliveryOptions = {"overflow": info.qos.overflow, "group": info.qos.group}
    if info.qos.durable:
        options["durable"] = True
    return Terms(info.pattern, options)


def sift(
    checker: Checker | None, channel: str, messages: Sequence[Message], max_bytes: int
) -> tuple[list[Message], Failures]:
    """The messages that match the schema of their channel, and the others, each with its problem."""
    fitting: list[Message] = []
    broken: Failures = []
    for message in messages:
        problem = checker.broken(message, max_bytes) if checker is not None else None
        if problem is None:
            fitting.append(message)
        else:
            broken.append((message, SchemaBroken(channel, *problem)))
    return fitting, broken
