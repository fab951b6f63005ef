"""A client of a directory: turns calls into requests of the control protocol, and repeats registrations later.

Calls also work while the directory does not answer: registrations return False and lookups return None. One warning is
logged until there is an answer again. Registrations are repeated automatically when the directory is available again.
Channels and schemas are created again if it is another directory, which may be empty.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from trunkline.brokers.announcements import Announcements
from trunkline.brokers.directory import Terms, checked, terms_of
from trunkline.errors import HubRefused, HubUnavailable, InvalidSettings
from trunkline.schema import hash_of, schema_of
from trunkline.wire import control
from trunkline.wire.control import ChannelChanged, ChannelInfo, Config, DiscoveryResponse, PeerInfo, Qos, SchemaInfo

log = logging.getLogger("trunkline.connection")

A = TypeVar("A", bound=control.Control)
Key = tuple[str, ...]


class AskedDirectory(abc.ABC):
    """The client of a directory.

    A refusal is raised as HubRefused, with its code: schema_mismatch, forbidden, not_owner, …
    """

    def __init__(self, owner: str, url: str) -> None:
        self._owner = owner
        self._url = url
        self._made: dict[Key, control.Ask] = {}
        """The requests that created schemas and channels, in order.

        They are repeated at another directory after a reconnection.
        """
        self._registered: dict[Key, control.Ask] = {}
        self._announcements = Announcements()
        self._warned = False
        self.on_change: list[Callable[[ChannelChanged], None]] = []
        """Called when members of a channel of this client join, leave or become silent, and when it is destroyed."""

    @property
    def closed(self) -> bool:
        return False

    @abc.abstractmethod
    async def _ask(self, request: control.Ask, kind: type[A]) -> A | None:
        """The answer; None if there is none. A missing answer is logged once, until there is an answer again."""

    # Producers and consumers

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
        """Register a producer of a channel; True if the hub has it.

        The schema, a type or a JSON Schema, is registered first. It is registered with `version` and `compatibility`,
        as by `put_schema`. The first producer creates the channel, unless it exists. Raises InvalidSettings if the
        config is not valid.
        """
        config = config or Config()
        if problem := config.problem():
            raise InvalidSettings(problem)
        request = control.ProducerRegister(
            id=0,
            channel=channel,
            schema_hash="" if schema is None else hash_of(schema),
            schema_version=version,
            config=config,
            shm_name=shm_name,
            metadata=dict(metadata or {}),
        )
        if schema is not None:
            info = await self._have_schema(channel, schema_of(schema), request.schema_hash, version, compatibility)
            request = replace(request, schema_version=info.version if info is not None else version)
        known = await self._register(("producer", channel), request)
        if not self.closed:
            # For processes on this machine, even without a directory.
            self._announcements.announce(request)
        return known

    async def attach_producer(
        self, channel: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Terms:
        """As `register_producer`, and returns the channel's description; raises HubUnavailable without a hub."""
        known = await self.register_producer(channel, schema=schema, metadata=metadata)
        return terms_of(await self._described(known, ("producer", channel)))

    async def _described(self, known: bool, key: Key) -> ChannelInfo:
        """The description of a channel after a registration.

        Raises HubUnavailable, and drops the registration, without a hub.
        """
        info = await self.describe(key[1]) if known else None
        if info is None:
            self._drop(key)
            raise HubUnavailable(self._url, f"the channel {key[1]} cannot be described without a hub")
        return info

    async def unregister_producer(self, channel: str) -> bool:
        """Unregister; False if it was not registered at the hub."""
        self._drop(("producer", channel))
        return await self._do(control.ProducerUnregister(id=0, channel=channel))

    async def register_consumer(
        self, channel: str, consumer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """Register a consumer; refused if the channel has another schema. Producers may register later."""
        request = control.ConsumerRegister(
            id=0,
            channel=channel,
            consumer_id=consumer_id,
            expected_schema_hash="" if schema is None else hash_of(schema),
            metadata=dict(metadata or {}),
        )
        return await self._register(("consumer", channel, consumer_id), request)

    async def attach(
        self, channel: str, consumer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Terms:
        """As `register_consumer`, and returns the channel's description; raises HubUnavailable without a hub."""
        known = await self.register_consumer(channel, consumer_id, schema=schema, metadata=metadata)
        return terms_of(await self._described(known, ("consumer", channel, consumer_id)))

    async def unregister_consumer(self, channel: str, consumer_id: str) -> bool:
        self._registered.pop(("consumer", channel, consumer_id), None)
        return await self._do(control.ConsumerUnregister(id=0, channel=channel, consumer_id=consumer_id))

    async def discover_producer(self, channel: str, *, schema: Any = None) -> DiscoveryResponse | None:
        """The producers of a channel and the location of its data; None if there is no producer.

        Raises HubRefused if the schema differs.
        """
        found = await self._discover(channel)
        return checked(found, schema) if found is not None and found.producers else None

    async def find(self, channel: str, *, schema: Any = None) -> DiscoveryResponse | None:
        """As `discover_producer`.

        If the hub does not answer or has no producer, the descriptor files of this machine are used. The schema is then
        compared with that of the file, in the same way.
        """
        found = await self.discover_producer(channel, schema=schema)
        if found is not None:
            return found
        found = self._announcements.find(channel)
        return None if found is None else checked(found, schema)

    async def discover_consumers(self, channel: str) -> list[PeerInfo] | None:
        found = await self._discover(channel)
        return None if found is None else found.consumers

    async def _discover(self, channel: str) -> DiscoveryResponse | None:
        return await self._ask(control.DiscoveryRequest(id=0, channel=channel), DiscoveryResponse)

    # Channels

    async def create_channel(
        self, channel: str, *, pattern: str = "", schema: Any = None, qos: Qos | None = None, description: str = ""
    ) -> bool:
        """Create a channel, by default for the topic with its name.

        True if the hub has it, even if it existed before.
        """
        hash = "" if schema is None else hash_of(schema)
        info = None if schema is None else await self._have_schema(channel, schema_of(schema), hash, "")
        request = control.ChannelCreate(
            id=0,
            channel=channel,
            pattern=pattern,
            schema_hash=hash,
            schema_version="" if info is None else info.version,
            qos=qos or Qos(),
            description=description,
        )
        done = await self._ask(request, control.Done)
        self._made[("channel", channel)] = request
        return done is not None

    async def destroy_channel(self, channel: str) -> bool:
        self._forget(channel)
        return await self._do(control.ChannelDestroy(id=0, channel=channel))

    async def channels(self, pattern: str = ">") -> list[ChannelInfo] | None:
        """The channels whose names match, without their members."""
        found = await self._ask(control.ChannelList(id=0, pattern=pattern), control.Channels)
        return None if found is None else found.channels

    async def describe(self, channel: str) -> ChannelInfo | None:
        found = await self._ask(control.ChannelDescribe(id=0, channel=channel), control.Channels)
        return None if found is None else found.channels[0]

    # Schemas

    async def put_schema(self, name: str, schema: Any, version: str = "", compatibility: str = "") -> SchemaInfo | None:
        """Register a schema, or its next version. The result has its version and hash."""
        request = control.SchemaPut(
            id=0, name=name, schema=schema_of(schema), version=version, compatibility=compatibility
        )
        answer = await self._ask(request, control.Schemas)
        info = None if answer is None else answer.schemas[0]
        key = ("schema", name, hash_of(schema))
        self._made[key] = request if info is None else replace(request, version=info.version)
        return info

    async def get_schema(self, name: str = "", version: str = "", *, hash: str = "") -> SchemaInfo | None:
        """A schema by name (the last version unless one is given) or by hash."""
        found = await self._ask(control.SchemaGet(id=0, name=name, version=version, hash=hash), control.Schemas)
        return None if found is None else found.schemas[0]

    async def schemas(self, name: str = "") -> list[SchemaInfo] | None:
        """The last version of each schema, or all versions of one; without the schemas themselves."""
        found = await self._ask(control.SchemaList(id=0, name=name), control.Schemas)
        return None if found is None else found.schemas

    async def _have_schema(
        self, name: str, schema: dict[str, Any], hash: str, version: str, compatibility: str = ""
    ) -> SchemaInfo | None:
        """Register a schema, unless it exists. If it exists, a producer does not need the right to register schemas."""
        try:
            info = await self.get_schema(hash=hash)
        except HubRefused as error:
            if error.code != "unknown_schema":
                raise
            return await self.put_schema(name, schema, version, compatibility)
        if info is None or info.name == name:
            given = version if info is None else info.version
            request = control.SchemaPut(id=0, name=name, schema=schema, version=given, compatibility=compatibility)
            self._made[("schema", name, hash)] = request
        return info

    # Asking

    async def _register(self, key: Key, request: control.Ask) -> bool:
        done = await self._ask(request, control.Done)
        # Also without a hub: it is repeated on the next connection.
        self._registered[key] = request
        return done is not None

    async def _do(self, request: control.Ask) -> bool:
        done = await self._ask(request, control.Done)
        return done is not None and done.changed

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the directory of %s at %s is not available (%s): channels are not registered or found until it is",
                self._owner,
                self._url,
                str(error) or "it does not answer",
            )

    # Notifications

    def _changed(self, notice: ChannelChanged) -> None:
        if notice.event == "destroyed":
            self._forget(notice.channel)
        elif notice.event == "schema_mismatch":
            self._registered.pop(("consumer", notice.channel, notice.name), None)
            log.error(
                "%s has a new schema, which differs from the schema that its consumer %s expects",
                notice.channel,
                notice.name,
            )
        for report in self.on_change:
            report(notice)

    def _forget(self, channel: str) -> None:
        self._made.pop(("channel", channel), None)
        for key in [key for key in self._registered if key[1] == channel]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        """Forget a registration, and remove the descriptor file of a producer."""
        self._registered.pop(key, None)
        if key[0] == "producer":
            self._announcements.withdraw(key[1])

    def withdraw(self) -> None:
        """Remove the descriptor files. Called when the last bus on this connection closes."""
        for key in list(self._registered):
            self._drop(key)
