"""The registry: channels, their producers and consumers, and the notifications to send. Pure: times are arguments.

A channel is created explicitly by its owner. It is created implicitly by its first producer, which becomes its owner,
or by its first consumer, which waits for a producer. An implicit channel is removed with its last member. The schema of
a channel is the one it was created with, otherwise that of its producers.

The events that other members of a channel are notified of: producer_joined, producer_left, producer_suspected,
producer_recovered, the same four of consumer_, schema_mismatch (the channel has got another schema than a consumer
expects, so the consumer is no longer registered) and destroyed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from trunkline.errors import InvalidTopic, ProtocolError
from trunkline.registry.channel import Channel, Effect, KeptChannel, Notice, Peer, Registration
from trunkline.registry.records import ChannelRecord
from trunkline.topic import EVERYTHING, MAX_TOPIC_CHARS, TopicTree, matches, validate_pattern, validate_topic
from trunkline.wire import control
from trunkline.wire.control import ChannelChanged

MAX_CACHED: Final = 10_000
Held = tuple[str, str, str]
"""The key of a registration: producer or consumer, the channel, and the consumer's id."""
Keep = Callable[[list[KeptChannel]], None]
"""Called with the new state of the created channels before anything changes. If it raises, nothing is changed."""


class Who(NamedTuple):
    """A client: its session, the name it chose, and the identity from its transport."""

    session: str
    name: str
    identity: str
    administers: bool = False
    """Whether it has the rights of the owner of the channel."""


class RegistryLimits(NamedTuple):
    channels: int = 10_000
    peers: int = 10_000
    """The maximum number of members of one channel. All of them, with their registrations, must fit into one frame."""
    registrations: int = 4000
    """The maximum number of registrations of one session."""
    request_bytes: int = 4096
    """The maximum size of one registration, or of a request to create a channel, as JSON."""


class Registry:
    def __init__(self, limits: RegistryLimits = RegistryLimits()) -> None:
        self._limits = limits
        self._channels: dict[str, Channel] = {}
        self._patterns: dict[str, Channel] = {}
        self._tree: TopicTree[Channel] = TopicTree()
        self._found: dict[str, Channel | None] = {}
        self._held: dict[str, dict[Held, None]] = {}
        """The registrations of each session."""

    def __len__(self) -> int:
        return len(self._channels)

    # Finding

    def find(self, topic: str) -> Channel | None:
        """The channel of a topic. The most specific pattern wins. System topics belong to no channel."""
        if topic in self._found:
            return self._found[topic]
        if topic.startswith("_") or len(topic) > MAX_TOPIC_CHARS:
            return None
        if len(self._found) >= MAX_CACHED:
            self._found.clear()
        fitting = self._tree.match(topic)
        found = self._found[topic] = min(fitting, key=lambda channel: rank(channel.pattern), default=None)
        return found

    def channel(self, name: str) -> Channel | None:
        return self._channels.get(name)

    def known(self, name: str) -> Channel:
        """The channel with this name. Raises ProtocolError if there is none."""
        channel = self._channels.get(name)
        if channel is None:
            raise unknown(name)
        return channel

    def select(self, pattern: str) -> Iterator[Channel]:
        """The channels whose name matches, in order."""
        everything = pattern == EVERYTHING
        return (channel for name, channel in sorted(self._channels.items()) if everything or matches(pattern, name))

    def with_schema(self, hash: str) -> list[str]:
        """The patterns of the channels that have this schema."""
        return [channel.pattern for channel in self._channels.values() if channel.schema_hash == hash]

    # Channels

    def create(self, who: Who, request: control.ChannelCreate, now_ns: int, keep: Keep | None = None) -> Effect:
        """Create a channel as requested. Its owner can turn an implicit channel into an explicit one."""
        pattern = request.pattern or request.channel
        _check_name(request.channel, pattern)
        self._check_size(request)
        channel = self._channels.get(request.channel)
        if channel is None:
            kept = KeptChannel.of(request, who.identity, now_ns)
        else:
            kept = KeptChannel.of(request, channel.owner or who.identity, channel.created_ns)
            if channel.kept is not None:
                if channel.owner == who.identity and channel.kept == kept:
                    return Effect(changed=False)
                text = f"the channel {request.channel} exists already, and belongs to {channel.owner}"
                raise ProtocolError("exists", text)
        self._check_free(pattern, channel)
        if channel is None:
            self._check_new(request.channel)
        else:
            self._may_change(who, channel)
            if request.schema_hash and channel.producers and channel.schema_hash not in ("", request.schema_hash):
                raise _mismatch(channel, "its producers have", channel.schema_hash, "asked for is", request.schema_hash)
        if keep is not None:
            keep([*self.kept(), kept])
        channel = channel or self._add(request.channel, kept.owner, now_ns)
        effect = Effect()
        effect.patterns += dict.fromkeys((channel.pattern, pattern))
        channel.become(kept)
        self._place(channel, pattern)
        self._part_with_strangers(channel, effect)
        return effect

    def destroy(self, who: Who, name: str, keep: Keep | None = None) -> Effect:
        channel = self.known(name)
        self._may_change(who, channel)
        if keep is not None and channel.kept is not None:
            keep([kept for kept in self.kept() if kept is not channel.kept])
        effect = Effect()
        effect.notify(channel, "destroyed", but=who.session)
        self.unload(name)
        effect.patterns.append(channel.pattern)
        return effect

    def kept(self) -> list[KeptChannel]:
        """The explicit channels, in the form that `restore` takes."""
        return [channel.kept for channel in self._channels.values() if channel.kept is not None]

    def restore(self, kept: Iterable[KeptChannel]) -> None:
        """Load the channels of an earlier run, before any client connects.

        Raises ProtocolError for an invalid channel.
        """
        for each in kept:
            _check_name(each.channel, each.pattern)
            if each.channel in self._channels or each.pattern in self._patterns:
                raise ProtocolError("exists", f"{each.channel}, or its topics {each.pattern}, exist twice")
            channel = self._channels[each.channel] = Channel(each.channel, each.owner, each.created_ns)
            channel.become(each)
            self._place(channel, each.pattern)

    # Shared with other processes: the records that they have stored

    def load(self, record: ChannelRecord) -> None:
        """Add a channel with all its members. Raises ProtocolError for an invalid one."""
        _check_name(record.channel, record.pattern)
        channel = self._channels[record.channel] = record.made()
        self._place(channel, record.pattern)
        for session in channel.producers:
            self._held.setdefault(session, {})["producer", channel.name, ""] = None
        for consumer in channel.consumers.values():
            self._held.setdefault(consumer.session, {})["consumer", channel.name, consumer.name] = None

    def unload(self, name: str) -> None:
        """Remove a channel without notifications."""
        channel = self._channels[name]
        for session in channel.producers:
            self._forget(session, ("producer", name, ""))
        for consumer in channel.consumers.values():
            self._forget(consumer.session, ("consumer", name, consumer.name))
        self._remove(channel)

    def sessions(self) -> list[str]:
        """The sessions that are on any channel."""
        return list(self._held)

    def held(self, session: str) -> list[Held]:
        """The registrations of a session."""
        return list(self._held.get(session, ()))

    def _may_change(self, who: Who, channel: Channel) -> None:
        if channel.owner not in ("", who.identity) and not who.administers:
            raise ProtocolError("not_owner", f"the channel {channel.name} belongs to {channel.owner}")

    def _check_new(self, name: str) -> None:
        if len(self._channels) >= self._limits.channels:
            raise ProtocolError("too_many", f"there are already {self._limits.channels} channels, which is the limit")
        self._check_free(name, None)

    def _add(self, name: str, owner: str, now_ns: int) -> Channel:
        self._check_new(name)
        channel = self._channels[name] = Channel(name, owner, now_ns)
        self._place(channel, name)
        return channel

    def _check_free(self, pattern: str, channel: Channel | None) -> None:
        other = self._patterns.get(pattern)
        if other is not None and other is not channel:
            raise ProtocolError("exists", f"the topics {pattern} belong to the channel {other.name} already")

    def _place(self, channel: Channel, pattern: str) -> None:
        self._displace(channel)
        channel.pattern = pattern
        self._patterns[pattern] = channel
        self._tree.add(pattern, channel)

    def _displace(self, channel: Channel) -> None:
        if self._tree.remove(channel.pattern, channel):
            del self._patterns[channel.pattern]
        self._found.clear()

    def _remove(self, channel: Channel) -> None:
        del self._channels[channel.name]
        self._displace(channel)

    # Producers and consumers

    def register_producer(self, who: Who, request: control.ProducerRegister, now_ns: int) -> Effect:
        self._check(request)
        if problem := request.config.problem():
            raise ProtocolError("malformed", problem)
        channel = self._channels.get(request.channel)
        if channel is not None and request.schema_hash:
            had = channel.schema_without(who.session)
            if had not in ("", request.schema_hash):
                raise _mismatch(channel, "the channel has", had, "the producer has", request.schema_hash)
        key = ("producer", request.channel, "")
        self._check_room(who, key)
        before = channel.contract() if channel is not None else None
        channel = channel or self._add(request.channel, "", now_ns)
        effect = self._register(channel, channel.producers, who.session, Peer(*who[:3], now_ns, request), key)
        channel.owner = channel.owner or who.identity
        self._part_with_strangers(channel, effect)
        if channel.contract() != before:
            effect.patterns.append(channel.pattern)
        return effect

    def register_consumer(self, who: Who, request: control.ConsumerRegister, now_ns: int) -> Effect:
        """Register a consumer.

        A consumer that is registered in another session of the same identity has reconnected, and is moved to this
        session.
        """
        self._check(request)
        name = request.consumer_id
        if not name or len(name) > 255:
            raise ProtocolError("malformed", "a consumer needs an id of up to 255 characters")
        channel = self._channels.get(request.channel)
        if channel is not None:
            if channel.refuses(request.expected_schema_hash):
                expected = request.expected_schema_hash
                raise _mismatch(channel, "the channel has", channel.schema_hash, "the consumer expects", expected)
            had = channel.consumers.get(name)
            if had is not None and had.session != who.session and had.identity != who.identity:
                raise ProtocolError(
                    "exists", f"{request.channel} already has a consumer {name}, of {had.identity}: use another id"
                )
        key = ("consumer", request.channel, name)
        self._check_room(who, key)
        patterns = [] if channel is not None else [request.channel]
        channel = channel or self._add(request.channel, "", now_ns)
        peer = Peer(who.session, name, who.identity, now_ns, request)
        effect = self._register(channel, channel.consumers, name, peer, key)
        effect.patterns += patterns
        return effect

    def _register(self, channel: Channel, peers: dict[str, Peer], key: str, peer: Peer, held: Held) -> Effect:
        had = peers.get(key)
        peers[key] = peer
        if had is None:
            effect = Effect()
            effect.notify(channel, f"{held[0]}_joined", peer.name, but=peer.session)
        else:
            peer.since_ns = had.since_ns
            effect = Effect(changed=had.session != peer.session or not had.is_as(peer.registration))
            if had.session != peer.session:
                self._forget(had.session, held)
            else:
                peer.suspected = had.suspected
        self._held.setdefault(peer.session, {})[held] = None
        return effect

    def unregister(self, session: str, kind: str, name: str, consumer: str = "") -> Effect:
        """Remove a producer or a consumer from a channel."""
        if (kind, name, consumer) not in self._held.get(session, ()):
            return Effect(changed=False)
        effect = Effect()
        self._part(session, kind, name, consumer, effect)
        return effect

    def left(self, session: str) -> Effect:
        """Remove a session and all its registrations."""
        effect = Effect()
        for kind, name, consumer in list(self._held.get(session, ())):
            self._part(session, kind, name, consumer, effect)
        return effect

    def suspect(self, session: str, suspected: bool) -> Effect:
        """Mark a session as silent, or as active again."""
        effect = Effect()
        for kind, name, consumer in self._held.get(session, ()):
            channel = self._channels[name]
            peer = channel.producers[session] if kind == "producer" else channel.consumers[consumer]
            if peer.suspected != suspected:
                peer.suspected = suspected
                event = f"{kind}_{'suspected' if suspected else 'recovered'}"
                effect.notify(channel, event, peer.name, but=session)
        return effect

    def _part(self, session: str, kind: str, name: str, consumer: str, effect: Effect) -> None:
        channel = self._channels[name]
        before = channel.contract()
        peer = channel.producers.pop(session) if kind == "producer" else channel.consumers.pop(consumer)
        self._forget(session, (kind, name, consumer))
        effect.notify(channel, f"{kind}_left", peer.name, but=session)
        if not channel.explicit and not channel.producers and not channel.consumers:
            self._remove(channel)
            effect.patterns.append(channel.pattern)
        elif channel.contract() != before:
            effect.patterns.append(channel.pattern)

    def _part_with_strangers(self, channel: Channel, effect: Effect) -> None:
        """Remove consumers that waited for the channel and expected another schema."""
        for consumer in channel.strangers():
            change = ChannelChanged(channel=channel.name, event="schema_mismatch", name=consumer.name)
            effect.notices.append(Notice(consumer.session, change))
            del channel.consumers[consumer.name]
            self._forget(consumer.session, ("consumer", channel.name, consumer.name))

    # Registrations of a session

    def _forget(self, session: str, key: Held) -> None:
        held = self._held[session]
        del held[key]
        if not held:
            del self._held[session]

    def _check_room(self, who: Who, key: Held) -> None:
        held = self._held.get(who.session, {})
        if key in held:
            return
        if len(held) >= self._limits.registrations:
            raise ProtocolError("too_many", f"{who.name} has {len(held)} registrations already")
        channel = self._channels.get(key[1])
        if channel is not None and len(channel.producers) + len(channel.consumers) >= self._limits.peers:
            raise ProtocolError("too_many", f"{self._limits.peers} are registered on {channel.name} already")

    def _check(self, request: Registration) -> None:
        _check_name(request.channel, request.channel)
        self._check_size(request)

    def _check_size(self, request: control.Control) -> None:
        size = len(control.write(request))
        if size > self._limits.request_bytes:
            raise ProtocolError(
                "too_large", f"the description has {size:,} bytes, at most {self._limits.request_bytes:,} are allowed"
            )


def unknown(name: str) -> ProtocolError:
    return ProtocolError("unknown_channel", f"there is no channel {name}")


def _check_name(name: str, pattern: str) -> None:
    try:
        validate_topic(name)
        validate_pattern(pattern)
    except InvalidTopic as error:
        raise ProtocolError("invalid_topic", f"the name of a channel must be a valid topic: {error}") from error
    if name.startswith("_") or pattern.startswith("_"):
        raise ProtocolError("invalid_topic", "names that begin with _ are reserved for the bus, and cannot be channels")


def rank(pattern: str) -> tuple[int, ...]:
    """Smaller for a more specific pattern: a word, then `*`, then `>`.

    No two patterns that match one topic are equal.
    """
    return tuple({"*": 1, ">": 2}.get(token, 0) for token in pattern.split("."))


def _mismatch(channel: Channel, *parts: str) -> ProtocolError:
    one, mine, other, theirs = parts
    return ProtocolError(
        "schema_mismatch", f"schemas differ on {channel.name}: {one} {mine or 'none'}, {other} {theirs}"
    )
