"""A snapshot of the hub: its clients and subscribers, and their state. Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.brokers.store import DurablePlace, StoreSummary
from trunkline.delivery.fates import Account
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.outlet import Outlet
from trunkline.wire.snapshot import ClientSnapshot, HubSnapshot, SubscriberSnapshot, TopicSnapshot

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

MAX_ROWS = 10_000
"""The limit for clients, subscribers and topics each. With long names, the answer has a few megabytes."""


async def snapshot_of(hub: Hub, rows: int) -> HubSnapshot:
    return snapshot_with(hub, rows, None if hub.store is None else await hub.store.summary())


def snapshot_with(hub: Hub, rows: int, kept: StoreSummary | None) -> HubSnapshot:
    """The snapshot, with a summary of the store."""
    rows = max(0, min(rows, MAX_ROWS))
    store = hub.store
    sessions = [session for session in hub.sessions.values() if session.name]
    subscribers = list(_subscribers(hub, sessions, [] if kept is None else kept.places))
    topics = hub.broker.published_by_topic()
    return HubSnapshot(
        at_ns=hub.world.time_ns(),
        hub=hub.id,
        since_ns=hub.since_ns,
        listening=hub.addresses,
        published=hub.published,
        last=hub.broker.sequence.last,
        journal="" if store is None else str(store.folder),
        dead_letters=len(hub.broker.served.dead_letters) if kept is None else kept.dead_letters,
        orphans=0 if kept is None else kept.orphans,
        counts=dict(hub.counts),
        account=msgspec.to_builtins(sum(hub.broker.served.accounts().values(), Account())),
        clients=[_client(session) for session in sessions[:rows]],
        clients_total=len(sessions),
        subscribers=nlargest(rows, subscribers, key=lambda each: (each.waiting, each.behind, each.dropped)),
        subscribers_total=len(subscribers),
        topics=[
            TopicSnapshot(topic=topic, published=published)
            for topic, published in nlargest(rows, topics.items(), key=lambda item: item[1])
        ],
        topics_total=len(topics),
    )


def _client(session: Session) -> ClientSnapshot:
    return ClientSnapshot(
        session=session.id,
        name=session.name,
        identity=session.identity,
        address=session.wire.peer.address,
        since_ns=session.since_ns,
        library=session.library,
        suspected=session.protocol.suspected,
        subscriptions=len(session.outlets) + len(session.members),
        published=session.published,
        delivered=session.delivered,
        backlog_bytes=session.wire.backlog,
        held_up=len(session.protocol.pending),
    )


def _subscribers(hub: Hub, sessions: list[Session], kept: list[DurablePlace]) -> Iterator[SubscriberSnapshot]:
    places = {place.name: place for place in kept}
    seen: set[str] = set()
    for session in sessions:
        client = {"session": session.id, "client": session.name}
        for outlet in session.outlets.values():
            seen.add(outlet.name)
            if not outlet.tap:
                yield _row(outlet, outlet.waiting, **client)
        for member in session.members.values():
            inbox = member.stream.inbox
            seen |= {inbox.name, inbox.role}
            place = places.get(inbox.role)
            yield _row(inbox, inbox.depth, group=member.group, **client, **_place(place))
    for inbox in hub.broker.served:
        if inbox.name not in seen:
            seen.add(inbox.role)
            yield _row(inbox, inbox.depth, **_place(places.get(inbox.role)))
    for place in kept:
        if place.name not in seen:
            yield SubscriberSnapshot(name=place.name, pattern=place.pattern, connected=False, **_place(place))


def _place(place: DurablePlace | None) -> dict[str, Any]:
    return {} if place is None else {"durable": True, "behind": place.behind}


def _row(subscriber: Outlet | Inbox, waiting: int, **fields: Any) -> SubscriberSnapshot:
    return SubscriberSnapshot(
        name=subscriber.name,
        pattern=subscriber.pattern,
        overflow=subscriber.overflow.value,
        capacity=subscriber.capacity,
        waiting=waiting,
        waiting_since_ns=subscriber.waiting_since_ns,
        **msgspec.structs.asdict(subscriber.account()),
        **fields,
    )
