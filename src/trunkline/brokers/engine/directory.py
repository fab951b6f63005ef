"""The directory of channels on an engine: the producers and consumers of each channel, and the schemas.

There is no hub to keep it. The engine keeps a value for each channel and each schema. Each process has a copy, and
applies changes to it as a hub would. The engine accepts a change only if it is based on the latest version. If it is
not, the process reads the changes of the others and applies its own again. After a change, a process notifies all
others.

A process that ends removes itself from its channels. A process that died is removed by any other that notices it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trunkline.brokers.asked_directory import A, AskedDirectory
from trunkline.brokers.broker import Feature
from trunkline.brokers.directory import sift
from trunkline.brokers.engine.replica import CHANNEL, SCHEMA, DirectoryReplica
from trunkline.brokers.remote.adapter import TopicTerms
from trunkline.delivery.pending import Failures
from trunkline.errors import EngineUnavailable, HubRefused, InvalidPayload, ProtocolError, TrunklineError, Unsupported
from trunkline.message import Message
from trunkline.registry.channel import UNKNOWN, Channel, Effect
from trunkline.registry.quality import DEAD_LETTER, check_qos, limits
from trunkline.registry.registry import Registry, Who
from trunkline.wire import control
from trunkline.wire.control import ChannelChanged

if TYPE_CHECKING:
    from trunkline.brokers.engine.adapter import EngineAdapter

log = logging.getLogger("trunkline.connection")

Step = Callable[[], Effect]
Told = tuple[str, ChannelChanged]
"""A session, and the notice for it."""


class EngineDirectory(AskedDirectory):
    """One per connection: several buses of an event loop appear to others as one client."""

    def __init__(self, adapter: EngineAdapter, name: str, identity: str) -> None:
        super().__init__(adapter.name, adapter.url)
        self._adapter = adapter
        self._driver = adapter.driver
        self._replica = DirectoryReplica()
        self._name = name
        self._identity = identity
        self._lock = asyncio.Lock()
        self._loaded = asyncio.Event()
        self._run = ""
        adapter.on_connected.append(self._connected)

    @classmethod
    def of(cls, adapter: EngineAdapter, name: str, identity: str) -> EngineDirectory:
        if adapter.directory is None:
            adapter.directory = cls(adapter, name, identity)
        return adapter.directory

    @property
    def version(self) -> int:
        return self._replica.version

    @property
    def _registry(self) -> Registry:
        # Read each time: the object is replaced when the whole directory is read again.
        return self._replica.registry

    @property
    def _offered(self) -> bool:
        return Feature.CHANNELS in self._driver.features

    # The terms of topics

    async def loaded(self) -> None:
        """Return when the directory was read on this connection."""
        await self._loaded.wait()

    def terms(self, topic: str) -> tuple[str | None, str | None]:
        """The channel of a topic, and the hash of the schema that its messages must match."""
        channel = self._registry.find(topic)
        if channel is None:
            return None, None
        known = channel.schema_hash in self._replica.schemas
        return channel.name, channel.schema_hash if known else None

    def check(self, terms: TopicTerms, messages: Sequence[Message]) -> tuple[list[Message], Failures]:
        checker = self._replica.schemas.checker(terms.schema or "")
        return sift(checker, terms.channel or terms.topic, messages, self._driver.max_bytes)

    # Asking

    async def _ask(self, request: control.Ask, kind: type[A]) -> A | None:
        try:
            await self._adapter.ready()
            if not self._offered:
                raise Unsupported(self._adapter.name, Feature.CHANNELS.value)
            async with asyncio.timeout(self._adapter.connect_s), self._lock:
                answer = await self._execute(request)
        except (EngineUnavailable, TimeoutError) as error:
            self._warn(error)
            return None
        except ProtocolError as error:
            raise HubRefused(error.code, error.text) from error
        assert isinstance(answer, kind)
        return answer

    async def _execute(self, request: control.Ask) -> control.Answer:
        await self._refresh()
        match request:
            case control.DiscoveryRequest():
                channel = await self._living(request.channel)
                if channel is None:
                    return control.DiscoveryResponse(re=0, channel=request.channel, status=UNKNOWN)
                return channel.discovered(0)
            case control.ChannelList():
                found = self._registry.select(request.pattern)
                return control.Channels(re=0, channels=[each.info(whole=False) for each in found])
            case control.ChannelDescribe():
                await self._living(request.channel)
                return control.Channels(re=0, channels=[self._registry.known(request.channel).info(whole=True)])
            case control.SchemaGet():
                info = self._replica.schemas.get(request.name, request.version, request.hash)
                return control.Schemas(re=0, schemas=[info])
            case control.SchemaList():
                return control.Schemas(re=0, schemas=self._replica.schemas.overview(request.name))
            case control.SchemaPut():
                return await self._put_schema(request)
            case control.ChannelCreate():
                await self._check_contract(request)
        return control.Done(re=0, changed=await self._change(*self._step(request)))

    def _step(self, request: control.Ask) -> tuple[str, Step]:
        """The key that a request changes, and the function that changes it."""
        who, me = Who(self._adapter.me, self._name, self._identity), self._adapter.me
        now_ns = self._adapter.world.time_ns()
        match request:
            case control.ProducerRegister():
                versioned = replace(request, schema_version=self._version(request.schema_hash, request.schema_version))
                return CHANNEL + request.channel, lambda: self._registry.register_producer(who, versioned, now_ns)
            case control.ProducerUnregister():
                return CHANNEL + request.channel, lambda: self._registry.unregister(me, "producer", request.channel)
            case control.ConsumerRegister():
                return CHANNEL + request.channel, lambda: self._registry.register_consumer(who, request, now_ns)
            case control.ConsumerUnregister(channel=channel, consumer_id=name):
                return CHANNEL + channel, lambda: self._registry.unregister(me, "consumer", channel, name)
            case control.ChannelCreate():
                made = replace(request, schema_version=self._version(request.schema_hash, request.schema_version))
                return CHANNEL + request.channel, lambda: self._registry.create(who, made, now_ns)
            case control.ChannelDestroy():
                return CHANNEL + request.channel, lambda: self._registry.destroy(who, request.channel)
        raise AssertionError(f"the directory does not serve {type(request).__name__}")

    def _version(self, hash: str, version: str) -> str:
        schemas = self._replica.schemas
        return version if version or hash not in schemas else schemas.get(hash=hash).version

    async def _check_contract(self, request: control.ChannelCreate) -> None:
        qos = request.qos
        check_qos(qos)
        if request.schema_hash:
            self._replica.schemas.get(hash=request.schema_hash)
        if limits(qos):
            raise ProtocolError(
                "not_durable", "an engine has one retention for all topics: set max_age_s or max_bytes when connecting"
            )
        if qos.invalid == DEAD_LETTER:
            raise ProtocolError(
                "unsupported", f"{self._adapter.name} always refuses messages that do not match the schema: use a hub"
            )
        if qos.durable:
            await self._adapter.cover(request.pattern or request.channel)

    async def _put_schema(self, request: control.SchemaPut) -> control.Schemas:
        found: list[control.SchemaInfo] = []

        def step() -> Effect:
            info = self._replica.schemas.put(request.name, request.schema, request.version, request.compatibility)
            found[:] = [info]
            effect = Effect()
            effect.patterns = self._registry.with_schema(info.hash)
            return effect

        await self._change(SCHEMA + request.name, step)
        return control.Schemas(re=0, schemas=found)

    # Changing

    async def _change(self, key: str, step: Step) -> bool:
        """Apply a change here and at the engine. Returns whether it changed anything. Raises ProtocolError."""
        replica = self._replica
        while True:
            effect = step()
            value = replica.value(key)
            if value == replica.stored(key):
                return effect.changed
            try:
                if value is not None and len(value) > self._driver.max_bytes:
                    raise ProtocolError("too_large", f"{key} has {len(value):,} bytes, more than the server accepts")
                version = await self._driver.write_directory(key, value, replica.version)
            except BaseException:
                replica.undo(key)
                raise
            if version is not None:
                break
            # Another process has changed the directory first.
            replica.undo(key)
            await self._refresh()
        replica.written(key, value, version)
        self._adapter.contracts_changed(effect.patterns)
        told = [(notice.session, notice.change) for notice in effect.notices]
        self._notice(told)
        await self._tell(version, told)
        return effect.changed

    async def _tell(self, version: int, told: list[Told]) -> None:
        """Notify the other processes, and wait until the engine has the notices.

        The process may end right after the call returns. The notices must be sent by then.
        """
        if (peers := self._adapter.peers) is not None:
            peers.tell_directory(version, [(session, each.channel, each.event, each.name) for session, each in told])
            await self._driver.sync()

    def _notice(self, told: Sequence[Told]) -> None:
        for session, change in told:
            if session == self._adapter.me:
                self._changed(change)

    async def _refresh(self) -> None:
        changes = await self._driver.read_directory(self._replica.version)
        try:
            patterns = self._replica.apply(changes)
        except InvalidPayload as error:
            raise HubRefused("malformed", str(error)) from error
        if patterns:
            self._adapter.contracts_changed(patterns)

    # Changes by other processes

    def told(self, version: int, told: list[Told]) -> None:
        """Called when another process has changed the directory."""
        if self._offered:
            self._adapter.start(self._catch_up(version, told), "the directory of channels was not read")

    async def _catch_up(self, version: int, told: list[Told]) -> None:
        async with self._lock:
            if version > self._replica.version:
                await self._refresh()
            self._notice(told)

    def beat(self) -> None:
        """Called every few seconds. Removes processes that died from the channels."""
        if self._offered and any(session != self._adapter.me for session in self._registry.sessions()):
            self._adapter.start(self._sweep(), "the members of the channels were not checked")

    async def _sweep(self) -> None:
        async with self._lock:
            for session in self._registry.sessions():
                await self._check_living(session)

    async def _living(self, name: str) -> Channel | None:
        """A channel, after processes that died were removed from it."""
        channel = self._registry.channel(name)
        for session in () if channel is None else channel.sessions():
            await self._check_living(session)
        return self._registry.channel(name)

    async def _check_living(self, session: str) -> None:
        peers = self._adapter.peers
        if session == self._adapter.me or peers is None:
            return
        heard = peers.has_heard(session)
        if not heard and not await self._driver.is_connected(session):
            await self._part(session)
            return
        effect = self._registry.suspect(session, suspected=not heard and peers.is_silent(session))
        self._notice([(notice.session, notice.change) for notice in effect.notices])

    async def _part(self, session: str) -> None:
        """Remove a process from all channels."""
        for kind, channel, consumer in self._registry.held(session):
            await self._change(CHANNEL + channel, partial(self._unregister, session, kind, channel, consumer))

    def _unregister(self, session: str, kind: str, channel: str, consumer: str) -> Effect:
        return self._registry.unregister(session, kind, channel, consumer)

    # The connection

    def _connected(self) -> None:
        self._warned = False
        self._loaded.clear()
        self._adapter.start(self._begin(), "the directory of channels was not read")

    async def _begin(self) -> None:
        """Read the directory, and repeat the registrations of this process."""
        try:
            if not self._offered:
                return
            async with self._lock:
                await self._refresh()
        finally:
            self._loaded.set()
        again = list(self._made.values()) if self._driver.run != self._run else []
        self._run = self._driver.run
        for request in (*again, *self._registered.values()):
            try:
                await self._ask(request, control.Answer)
            except TrunklineError as error:
                log.warning("the directory did not restore %s: %s", type(request).__name__, error)

    async def aclose(self) -> None:
        """Unregister everything. Called when the last bus on this connection closes."""
        self.withdraw()
        if not self._adapter.live or not self._offered:
            return
        try:
            async with asyncio.timeout(self._adapter.connect_s), self._lock:
                await self._part(self._adapter.me)
        except (TrunklineError, TimeoutError) as error:
            log.warning("%s could not be unregistered and stays listed until its lease ends: %s", self._name, error)
