"""The directory of a hub, as a client uses it: who produces and consumes on which channel, and the schemas.

Everything works without a hub, too: what would register says False and what would find says None, after `connect_s` at
the most and with one warning until there is a hub again. What was registered is registered again by itself, when the
hub comes, or comes back; channels and schemas are made again if it is another run of the hub, which
may know nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from trunkline.brokers.directory import Terms
from trunkline.brokers.hub.connection import Answer, Connection
from trunkline.delivery.options import DeliveryOptions
from trunkline.errors import HubError, HubRefused, HubUnavailable, InvalidSettings, ProtocolError
from trunkline.schema import hash_of, schema_of
from trunkline.transports.descriptors import Descriptor, Descriptors
from trunkline.wire import control
from trunkline.wire.control import ChannelChanged, ChannelInfo, Config, DiscoveryResponse, PeerInfo, Qos, SchemaInfo

log = logging.getLogger("trunkline.connection")

A = TypeVar("A", bound=control.Control)
Key = tuple[str, ...]


class HubDirectory:
    """One for a connection: what several buses of an event loop register is one client's, as the hub sees it.

    A refusal by the hub is raised as HubRefused, with its code: schema_mismatch, forbidden, not_owner, …
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made: dict[Key, control.Ask] = {}
        """Schemas and channels, in their order: another run of the hub gets them again."""
        self._registered: dict[Key, control.Ask] = {}
        self._hub = ""
        self._files = Descriptors()
        self._warned = False
        self.on_change: list[Callable[[ChannelChanged], None]] = []
        """Told when somebody comes, goes or falls silent on a channel this client is on, and when it is destroyed."""
        connection.listeners[ChannelChanged] = self._changed
        # Before everything else: what is published by itself must find its channel.
        connection.users.insert(0, self)

    @classmethod
    def of(cls, connection: Connection) -> HubDirectory:
        """The one of this connection."""
        return next((user for user in connection.users if isinstance(user, cls)), None) or cls(connection)

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
        """Produce on a channel; True if the hub knows. The schema, a type or a JSON Schema, is put there first.

        It is put with `version` and `compatibility`, as by `put_schema`. Whoever produces first makes the channel,
        unless it was created. Raises InvalidSettings if the config cannot be.
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
        self._announce(request)
        return known

    def _announce(self, request: control.ProducerRegister) -> None:
        """For processes of this machine, also while there is no hub. What the hub has refused is not announced."""
        if self._connection.closed:
            return
        descriptor = Descriptor(
            channel=request.channel,
            shm_name=request.shm_name,
            schema_hash=request.schema_hash,
            schema_version=request.schema_version,
            config=request.config,
            metadata=request.metadata,
        )
        try:
            self._files.announce(descriptor)
        except (OSError, InvalidSettings) as error:
            log.warning("%s cannot be found without a hub: %s", request.channel, error)

    async def attach_producer(
        self, channel: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Terms:
        """As `register_producer`, with what the channel is; raises HubUnavailable if there is no hub to say so."""
        known = await self.register_producer(channel, schema=schema, metadata=metadata)
        return _terms(await self._described(known, ("producer", channel)))

    async def _described(self, known: bool, key: Key) -> ChannelInfo:
        """The channel that was just registered for, or not."""
        info = await self.describe(key[1]) if known else None
        if info is None:
            self._drop(key)
            raise HubUnavailable(self._connection.url, f"nobody can say what the channel {key[1]} is")
        return info

    async def unregister_producer(self, channel: str) -> bool:
        """False if it was not registered at the hub."""
        self._drop(("producer", channel))
        return await self._do(control.ProducerUnregister(id=0, channel=channel))

    async def register_consumer(
        self, channel: str, consumer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """Consume from a channel; refused if it has another schema than this. It may come before its producers."""
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
        """As `register_consumer`, with what the channel is; raises HubUnavailable if there is no hub to say so."""
        known = await self.register_consumer(channel, consumer_id, schema=schema, metadata=metadata)
        return _terms(await self._described(known, ("consumer", channel, consumer_id)))

    async def unregister_consumer(self, channel: str, consumer_id: str) -> bool:
        self._registered.pop(("consumer", channel, consumer_id), None)
        return await self._do(control.ConsumerUnregister(id=0, channel=channel, consumer_id=consumer_id))

    async def discover_producer(self, channel: str, *, schema: Any = None) -> DiscoveryResponse | None:
        """Who produces there, and where the data is; None if nobody does. Raises HubRefused if the schema differs."""
        found = await self._discover(channel)
        return _checked(found, schema) if found is not None and found.producers else None

    async def find(self, channel: str, *, schema: Any = None) -> DiscoveryResponse | None:
        """As `discover_producer`, and if the hub does not answer, or knows of none, by the files of this machine.

        The schema is compared with that of the file then, in the same way.
        """
        found = await self.discover_producer(channel, schema=schema)
        if found is not None:
            return found
        descriptor = self._files.find(channel)
        if descriptor is None:
            return None
        producer = PeerInfo(
            name=f"pid {descriptor.pid}",
            identity="",
            status="active",
            since_ns=0,
            config=descriptor.config,
            metadata=descriptor.metadata,
        )
        found = DiscoveryResponse(
            re=0,
            channel=channel,
            shm_name=descriptor.shm_name,
            schema_hash=descriptor.schema_hash,
            schema_version=descriptor.schema_version,
            status="active",
            producers=[producer],
        )
        return _checked(found, schema)

    async def discover_consumers(self, channel: str) -> list[PeerInfo] | None:
        found = await self._discover(channel)
        return None if found is None else found.consumers

    async def _discover(self, channel: str) -> DiscoveryResponse | None:
        return await self._ask(control.DiscoveryRequest(id=0, channel=channel), DiscoveryResponse)

    # Channels

    async def create_channel(
        self, channel: str, *, pattern: str = "", schema: Any = None, qos: Qos | None = None, description: str = ""
    ) -> bool:
        """Make a channel, by default of the topic with its name; True if the hub has it, also if it had it before."""
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
        """The channels whose names match, without those who are on them."""
        found = await self._ask(control.ChannelList(id=0, pattern=pattern), control.Channels)
        return None if found is None else found.channels

    async def describe(self, channel: str) -> ChannelInfo | None:
        found = await self._ask(control.ChannelDescribe(id=0, channel=channel), control.Channels)
        return None if found is None else found.channels[0]

    # Schemas

    async def put_schema(self, name: str, schema: Any, version: str = "", compatibility: str = "") -> SchemaInfo | None:
        """Register a schema, or its next version; what is returned has its version and hash."""
        request = control.SchemaPut(
            id=0, name=name, schema=schema_of(schema), version=version, compatibility=compatibility
        )
        answer = await self._ask(request, control.Schemas)
        info = None if answer is None else answer.schemas[0]
        key = ("schema", name, hash_of(schema))
        self._made[key] = request if info is None else replace(request, version=info.version)
        return info

    async def get_schema(self, name: str = "", version: str = "", *, hash: str = "") -> SchemaInfo | None:
        """By name, the last version unless one is given, or by hash."""
        found = await self._ask(control.SchemaGet(id=0, name=name, version=version, hash=hash), control.Schemas)
        return None if found is None else found.schemas[0]

    async def schemas(self, name: str = "") -> list[SchemaInfo] | None:
        """The last version of each schema, or all versions of one; without the schemas themselves."""
        found = await self._ask(control.SchemaList(id=0, name=name), control.Schemas)
        return None if found is None else found.schemas

    async def _have_schema(
        self, name: str, schema: dict[str, Any], hash: str, version: str, compatibility: str = ""
    ) -> SchemaInfo | None:
        """Put it, unless it is there: whoever may produce need not be one who may put schemas."""
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
        # Also without a hub: the next connection makes it up.
        self._registered[key] = request
        return done is not None

    async def _do(self, request: control.Ask) -> bool:
        done = await self._ask(request, control.Done)
        return done is not None and done.changed

    async def _ask(self, request: control.Ask, kind: type[A]) -> A | None:
        """The answer; None if there is no hub, which is worth one warning until there is one."""
        limit_s = 0.0 if self._warned and not self._connection.live else self._connection.settings.connect_s
        try:
            async with asyncio.timeout(self._connection.settings.connect_s):
                answer = await self._answer(request, limit_s)
        except (HubUnavailable, TimeoutError) as error:
            self._warn(error)
            return None
        if not isinstance(answer, kind):
            raise ProtocolError("malformed", f"the hub answered with {type(answer).__name__}")
        return answer

    async def _answer(self, request: control.Ask, limit_s: float) -> control.Control:
        while True:
            await self._ready(limit_s)
            try:
                return await self._connection.ask(lambda number: replace(request, id=number))
            except HubUnavailable:
                # The connection ended meanwhile: there may soon be another one.
                continue

    async def _ready(self, limit_s: float) -> None:
        try:
            await self._connection.ready(limit_s)
        except HubUnavailable:
            raise
        except HubError as error:
            # It does not want us at all: that is as if it were not there.
            raise HubUnavailable(self._connection.url, str(error)) from error

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "going on without the directory of the hub at %s: nothing is registered or found there until it is back"
                " (%s)",
                self._connection.url,
                str(error) or "it does not answer",
            )

    # What the hub says

    def _changed(self, notice: ChannelChanged) -> None:
        if notice.event == "destroyed":
            self._forget(notice.channel)
        elif notice.event == "schema_mismatch":
            self._registered.pop(("consumer", notice.channel, notice.name), None)
            log.error("%s has got another schema than its consumer %s expects", notice.channel, notice.name)
        for report in self.on_change:
            report(notice)

    def _forget(self, channel: str) -> None:
        self._made.pop(("channel", channel), None)
        for key in [key for key in self._registered if key[1] == channel]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        """Not registered any more; a producer is not found by its file, either."""
        self._registered.pop(key, None)
        if key[0] == "producer":
            with contextlib.suppress(OSError, InvalidSettings):
                self._files.withdraw(key[1])

    def withdraw(self) -> None:
        """The last bus on this connection closes: its producers are found no more."""
        for key in list(self._registered):
            self._drop(key)

    # The connection

    def connected(self, welcome: control.Welcome) -> None:
        self._warned = False
        again = self._made.values() if welcome.hub != self._hub else ()
        self._hub = welcome.hub
        for request in (*again, *self._registered.values()):
            self._restore(request)

    def _restore(self, request: control.Ask) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, HubRefused):
                log.warning("the hub did not restore %s: %s", type(request).__name__, answer.text)

        self._connection.ask_soon(lambda number: replace(request, id=number), answered)

    def disconnected(self) -> None:
        return


def _checked(found: DiscoveryResponse, schema: Any) -> DiscoveryResponse:
    if schema is not None and (expected := hash_of(schema)) != found.schema_hash:
        text = f"schemas differ on {found.channel}: it has {found.schema_hash or 'none'}, expected is {expected}"
        raise HubRefused("schema_mismatch", text)
    return found


def _terms(info: ChannelInfo) -> Terms:
    options: DeliveryOptions = {"overflow": info.qos.overflow, "group": info.qos.group}
    if info.qos.durable:
        options["durable"] = True
    return Terms(info.pattern, options)
