"""The hub's API for its directory: channels, their producers and consumers, and schemas.

This module does the I/O around the pure parts. The codes of its errors:

    unknown_channel   there is no channel of that name
    exists            the channel, its topics or the consumer's id belong to another client
    not_owner         only the owner, or an administrator, may do that
    schema_mismatch   a producer has, or a consumer expects, another schema than the channel
    incompatible      a new version of a schema breaks what its compatibility mode protects
    unknown_schema    there is no schema of that name, version or hash
    invalid_schema    it is not a JSON Schema, or has keywords that cannot be checked here
    invalid_version   it is not a version, is not higher than the last one, or does not fit the change
    not_kept          the hub could not write it to disk: nothing has changed
    not_durable       a durable channel on topics that no journal stores
    too_many          a limit on channels, registrations or schemas is reached
    too_large         a schema, a channel or a registration exceeds its limit
    forbidden         the rules do not allow it
    malformed         an invalid value
    invalid_topic     an invalid name or pattern
    schema            a message does not match its schema; details: channel, field, why
    dead_letter       a message does not match, and is kept as a dead letter; details: seq. No error for its publisher
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trunkline.delivery.batch import Batch
from trunkline.errors import InvalidPayload, ProtocolError
from trunkline.hub.access import Action
from trunkline.hub.conformance import Broken, Sieve
from trunkline.hub.dead_letters import reject
from trunkline.hub.owners import DurableOwners, Keep
from trunkline.hub.registry_file import KeptRegistry, RegistryFile
from trunkline.hub.retention import rules_of
from trunkline.message import NORMAL
from trunkline.plural import counted
from trunkline.registry.channel import UNKNOWN, Channel, Effect, KeptChannel
from trunkline.registry.quality import DEAD_LETTER, REFUSE, check_qos, limits
from trunkline.registry.registry import Registry, Who, unknown
from trunkline.registry.schemas import KeptSchema, SchemaRegistry
from trunkline.topic import EVERYTHING, covers, validate_pattern
from trunkline.wire import control
from trunkline.wire.reported_metrics import total

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

log = logging.getLogger("trunkline.hub")

MAX_TOLD = 10_000
"""The maximum number of reported problems. A batch with more is refused as a whole, to bound the answer."""

Handler = Callable[["Session", Any], control.Control | None]


class DirectoryApi:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.registry = Registry()
        self.schemas = SchemaRegistry()
        self.owners = DurableOwners()
        self._sieve = Sieve()
        self._file = None if hub.store is None else RegistryFile(hub.store.folder)
        self.handlers: dict[type[control.Control], Handler] = {
            control.ProducerRegister: self._register_producer,
            control.ProducerUnregister: self._unregister_producer,
            control.ConsumerRegister: self._register_consumer,
            control.ConsumerUnregister: self._unregister_consumer,
            control.DiscoveryRequest: self._discover,
            control.ChannelCreate: self._create,
            control.ChannelDestroy: self._destroy,
            control.ChannelList: self._list,
            control.ChannelDescribe: self._describe,
            control.SchemaPut: self._put_schema,
            control.SchemaGet: self._get_schema,
            control.SchemaList: self._list_schemas,
        }

    # Persistence: a hub with a journal keeps explicit channels and schemas over a restart

    def recall(self) -> None:
        """Load the stored state before any client connects. Raises JournalUnusable if it cannot be read."""
        if self._file is None:
            return
        kept = self._file.read()
        try:
            self.schemas.restore(kept.schemas)
            self.registry.restore(kept.channels)
        except ProtocolError as error:
            raise self._file.damaged(error.text) from error
        assert self._hub.store is not None
        self.owners.restore(kept.owners, self._hub.store.durable_names())
        for channel in kept.channels:
            try:
                self._check_qos(channel.qos, channel.pattern)
            except ProtocolError as error:
                # The settings of the journal have changed. The channel is kept; its owner must decide.
                log.warning("the hub does not fulfil the settings of the channel %s: %s", channel.channel, error.text)
        self.retain()

    @property
    def _keep_channels(self) -> Callable[[list[KeptChannel]], None] | None:
        return None if self._file is None else lambda channels: self._keep(channels=channels)

    @property
    def _keep_schemas(self) -> Callable[[list[KeptSchema]], None] | None:
        return None if self._file is None else lambda schemas: self._keep(schemas=schemas)

    @property
    def keep_owners(self) -> Keep | None:
        return None if self._file is None else lambda owners: self._keep(owners=owners)

    def _keep(self, **changed: Any) -> None:
        """Write the new state to disk. Raises ProtocolError."""
        assert self._file is not None
        kept = KeptRegistry(channels=self.registry.kept(), schemas=self.schemas.kept(), owners=self.owners.kept())
        self._file.write(replace(kept, **changed))

    def _now_ns(self) -> int:
        return self._hub.world.time_ns()

    def _who(self, session: Session, channel: str) -> Who:
        administers = session.may(Action.ADMINISTER, channel)
        return Who(session.id, session.name, session.identity, administers)

    def _notify(self, effect: Effect) -> None:
        for notice in effect.notices:
            if (session := self._hub.sessions.get(notice.session)) is not None and not session.ended:
                session.send(notice.change)
        if effect.patterns:
            self.retain()
            self._hub.changed(effect.patterns)

    def retain(self) -> None:
        """Apply the retention of the channels' contracts to the journal."""
        if self._hub.store is not None:
            self._hub.store.retain(rules_of(self.registry.select(EVERYTHING)))

    def _done(self, asked: int, effect: Effect) -> control.Done:
        self._notify(effect)
        return control.Done(re=asked, changed=effect.changed)

    # Producers and consumers

    def _register_producer(self, session: Session, request: control.ProducerRegister) -> control.Control:
        channel = self._require(session, Action.PUBLISH, request.channel)
        if channel is None or not channel.owner:
            # From now on it has a contract that others must follow.
            session.require(Action.CREATE, request.channel)
        request = replace(request, schema_version=self._version(request.schema_hash, request.schema_version))
        who = self._who(session, request.channel)
        return self._done(request.id, self.registry.register_producer(who, request, self._now_ns()))

    def _version(self, hash: str, version: str) -> str:
        """The version of a schema, looked up if the client did not give it."""
        return version if version or hash not in self.schemas else self.schemas.get(hash=hash).version

    def _unregister_producer(self, session: Session, request: control.ProducerUnregister) -> control.Control:
        return self._done(request.id, self.registry.unregister(session.id, "producer", request.channel))

    def _register_consumer(self, session: Session, request: control.ConsumerRegister) -> control.Control:
        self._require(session, Action.SUBSCRIBE, request.channel)
        who = self._who(session, request.channel)
        return self._done(request.id, self.registry.register_consumer(who, request, self._now_ns()))

    def _unregister_consumer(self, session: Session, request: control.ConsumerUnregister) -> control.Control:
        return self._done(
            request.id, self.registry.unregister(session.id, "consumer", request.channel, request.consumer_id)
        )

    def _discover(self, session: Session, request: control.DiscoveryRequest) -> control.Control:
        channel = self._seen(session, request.channel)
        if channel is None:
            return control.DiscoveryResponse(re=request.id, channel=request.channel, status=UNKNOWN)
        return channel.discovered(request.id)

    def _require(self, session: Session, action: Action, name: str) -> Channel | None:
        """The channel, if it exists.

        Raises ProtocolError if the client may not perform the action on all its topics.
        """
        channel = self.registry.channel(name)
        if channel is not None and not session.may(action, channel.pattern):
            # The error does not name the topics, because a client without rights must not see them.
            raise ProtocolError("forbidden", f"{session.identity} may not {action.value} on the channel {name}")
        if channel is None:
            session.require(action, name)
        return channel

    def _may_see(self, session: Session, pattern: str) -> bool:
        return any(session.may(action, pattern) for action in Action)

    def _seen(self, session: Session, name: str) -> Channel | None:
        """The channel, if this client may use it. Raises ProtocolError if it may not use any channel of that name.

        A channel that the client may not use is treated like one that does not exist.
        """
        channel = self.registry.channel(name)
        if channel is not None and self._may_see(session, channel.pattern):
            return channel
        if not self._may_see(session, name):
            session.require(Action.SUBSCRIBE, name)
        return None

    def left(self, session: Session) -> None:
        self._notify(self.registry.left(session.id))

    def suspected(self, session: Session, suspected: bool) -> None:
        self._notify(self.registry.suspect(session.id, suspected))

    # Channels

    def _create(self, session: Session, request: control.ChannelCreate) -> control.Control:
        pattern = request.pattern or request.channel
        if request.schema_hash and request.schema_hash not in self.schemas:
            self.schemas.get(hash=request.schema_hash)
        self._check_qos(request.qos, pattern)
        request = replace(request, schema_version=self._version(request.schema_hash, request.schema_version))
        who = self._who(session, request.channel)
        return self._done(request.id, self.registry.create(who, request, self._now_ns(), self._keep_channels))

    def _check_qos(self, qos: control.Qos, pattern: str) -> None:
        check_qos(qos)
        if qos.durable or limits(qos):
            self._require_journal(pattern)

    def _require_journal(self, pattern: str) -> None:
        store = self._hub.store
        if store is None:
            raise ProtocolError(
                "not_durable",
                "this hub keeps no journal: start it with one, or create the channel neither durable nor with limits",
            )
        if not any(covers(wide, pattern) for wide in store.durable):
            kept = ", ".join(store.durable) or "none"
            raise ProtocolError(
                "not_durable", f"the hub's journal does not keep {pattern}: its durable topics are {kept}"
            )

    def _destroy(self, session: Session, request: control.ChannelDestroy) -> control.Control:
        if self._seen(session, request.channel) is None:
            raise unknown(request.channel)
        who = self._who(session, request.channel)
        return self._done(request.id, self.registry.destroy(who, request.channel, self._keep_channels))

    def _list(self, session: Session, request: control.ChannelList) -> control.Control:
        found = self.registry.select(validate_pattern(request.pattern))
        seen = [channel.info(whole=False) for channel in found if self._may_see(session, channel.pattern)]
        return control.Channels(re=request.id, channels=seen)

    def _describe(self, session: Session, request: control.ChannelDescribe) -> control.Control:
        channel = self._seen(session, request.channel)
        if channel is None:
            raise unknown(request.channel)
        return control.Channels(re=request.id, channels=[channel.info(whole=True)])

    def memory(self) -> dict[str, int | float]:
        """The sum of the last reported counters of all shared-memory producers."""
        return total(each for each in (channel.memory() for channel in self.registry.select(EVERYTHING)) if each)

    # Schemas: readable with rights on their name, or on a channel that uses them

    def _put_schema(self, session: Session, request: control.SchemaPut) -> control.Control:
        before = len(self.schemas)
        info = self.schemas.put(
            request.name, request.schema, request.version, request.compatibility, self._keep_schemas
        )
        if len(self.schemas) != before:
            # Channels may wait for it: producers can name a schema that is not registered yet.
            self._hub.changed(self.registry.with_schema(info.hash))
        return control.Schemas(re=request.id, schemas=[info])

    def _get_schema(self, session: Session, request: control.SchemaGet) -> control.Control:
        if request.name and not request.hash and not self._may_see(session, request.name):
            # Checked first: a channel that this client may use can have the schema by its hash.
            session.require(Action.SUBSCRIBE, request.name)
        info = self.schemas.get(request.name, request.version, request.hash)
        patterns = [info.name, *self.registry.with_schema(info.hash)]
        if not any(self._may_see(session, pattern) for pattern in patterns):
            raise ProtocolError("unknown_schema", f"no schema has the hash {request.hash}")
        return control.Schemas(re=request.id, schemas=[info])

    def _list_schemas(self, session: Session, request: control.SchemaList) -> control.Control:
        channels = self.registry.select(EVERYTHING)
        used = {channel.schema_hash for channel in channels if self._may_see(session, channel.pattern)}
        found = self.schemas.overview(request.name)
        seen = [info for info in found if info.hash in used or self._may_see(session, info.name)]
        return control.Schemas(re=request.id, schemas=seen)

    # Publishing

    def complete(self, info: control.TopicInfo) -> control.TopicInfo:
        """Add the requirements of the topic's channel, if it has one."""
        channel = self.registry.find(info.topic)
        if channel is None:
            return info
        # If invalid messages become dead letters, the client must send them to the hub unchecked.
        refuses = channel.qos.invalid == REFUSE and channel.schema_hash in self.schemas
        return control.TopicInfo(
            topic=info.topic,
            heard=info.heard,
            confirm=info.confirm or refuses,
            durable=info.durable,
            channel=channel.name,
            schema=channel.schema_hash if refuses else None,
        )

    def check(self, batch: Batch) -> Batch | None:
        """The valid part of a batch on a channel.

        The rest is refused, or becomes dead letters, as the channel defines.
        """
        channel = self.registry.find(batch.topic)
        if channel is None:
            return batch
        rest: Batch | None = batch
        hash = channel.schema_hash
        if hash and (checker := self.schemas.checker(hash)) is not None:
            limit = self._hub.broker.settings.max_message_bytes
            try:
                rest, broken = self._sieve.sift(batch, checker, limit)
            except InvalidPayload as error:
                batch.fail(-1, "malformed", str(error))
                return None
            if broken:
                rest = self._sort_out(channel, batch, rest, broken)
        if rest is not None and rest.priority == NORMAL:
            rest.rank = channel.qos.priority
        return rest

    def _sort_out(self, channel: Channel, batch: Batch, rest: Batch | None, broken: list[Broken]) -> Batch | None:
        self._hub.counts["invalid"] += len(broken)
        if channel.qos.invalid == DEAD_LETTER and len(broken) <= MAX_TOLD:
            for each in broken:
                seq = reject(self._hub.broker, channel.name, each, again=batch.again)
                batch.fail(each.place, "dead_letter", "", seq=seq)
            field, why = broken[0].problem
            log.error("%s on %s: %s at %s", counted(len(broken), "dead letter"), batch.topic, why, field)
            return rest
        for each in broken if len(broken) <= MAX_TOLD else broken[:1]:
            field, why = each.problem
            index = each.place if len(broken) <= MAX_TOLD else -1
            batch.fail(index, "schema", f"{why} at {field}", channel=channel.name, field=field, why=why)
        return rest if len(broken) <= MAX_TOLD else None
