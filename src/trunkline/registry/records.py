"""Records: the stored form of channels that processes share, with all their members. Pure."""

from __future__ import annotations

import msgspec

from trunkline.registry.channel import Channel, KeptChannel, Peer
from trunkline.wire import control


class PeerRecord(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    name: str
    identity: str
    since_ns: int
    registration: control.ProducerRegister | control.ConsumerRegister

    @classmethod
    def of(cls, peer: Peer) -> PeerRecord:
        return cls(
            session=peer.session,
            name=peer.name,
            identity=peer.identity,
            since_ns=peer.since_ns,
            registration=peer.registration,
        )

    def peer(self) -> Peer:
        return Peer(self.session, self.name, self.identity, self.since_ns, self.registration)


class ChannelRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    channel: str
    pattern: str
    owner: str
    created_ns: int
    kept: KeptChannel | None = None
    producers: list[PeerRecord] = []
    consumers: list[PeerRecord] = []

    @classmethod
    def of(cls, channel: Channel) -> ChannelRecord:
        return cls(
            channel=channel.name,
            pattern=channel.pattern,
            owner=channel.owner,
            created_ns=channel.created_ns,
            kept=channel.kept,
            producers=[PeerRecord.of(each) for each in channel.producers.values()],
            consumers=[PeerRecord.of(each) for each in channel.consumers.values()],
        )

    def made(self) -> Channel:
        channel = Channel(self.channel, self.owner, self.created_ns)
        if self.kept is not None:
            channel.become(self.kept)
        channel.producers = {each.session: each.peer() for each in self.producers}
        channel.consumers = {each.name: each.peer() for each in self.consumers}
        return channel
