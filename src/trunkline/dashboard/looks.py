"""The data of `trunkline top`: clients, topics, subscribers, actors, kernels and channels of a hub, as rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from trunkline.actors.health import ActorHealth
from trunkline.actors.watching import ROLL_CALL
from trunkline.brokers.hub.broker import HubBroker
from trunkline.bus.bus import Bus
from trunkline.dashboard.problems import is_slow
from trunkline.errors import HubRefused, StreamEmpty
from trunkline.jupyter.presence import SharedKernel, shared_kernels
from trunkline.wire.control import ChannelInfo
from trunkline.wire.snapshot import HubSnapshot, SubscriberSnapshot

Cell = str | int | float
MAX_DESCRIBED = 200


class HubLook(msgspec.Struct, frozen=True):
    """The state of a hub, and of the actors, kernels and channels on it, at one moment."""

    snapshot: HubSnapshot
    actors: list[ActorHealth]
    kernels: list[SharedKernel]
    channels: list[ChannelInfo]


class LookTable(msgspec.Struct, frozen=True):
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


async def look(broker: HubBroker, bus: Bus, rows: int, wait_s: float) -> HubLook:
    """Query the hub, and wait `wait_s` for answers of actor systems and kernels on the bus."""
    # Taken first, because the later queries subscribe to their answers, and these subscriptions must not be shown.
    snapshot = await broker.snapshot(rows)
    actors, kernels, channels = await asyncio.gather(
        roll_call(bus, wait_s), shared_kernels(bus, within_s=wait_s), channels_in_use(broker)
    )
    return HubLook(snapshot, actors, kernels, channels)


async def channels_in_use(broker: HubBroker) -> list[ChannelInfo]:
    """All channels. The first MAX_DESCRIBED have their producers and consumers.

    The hub's list of channels does not include producers and consumers, so each channel is queried on its own.
    """
    listed = await broker.directory.channels() or []
    shown, rest = listed[:MAX_DESCRIBED], listed[MAX_DESCRIBED:]
    return [*await asyncio.gather(*(_described(broker, each) for each in shown)), *rest]


async def _described(broker: HubBroker, channel: ChannelInfo) -> ChannelInfo:
    try:
        return await broker.directory.describe(channel.channel) or channel
    except HubRefused:
        # The channel was removed in the meantime.
        return channel


async def roll_call(bus: Bus, wait_s: float) -> list[ActorHealth]:
    """All actors that answer within `wait_s`, those with the fullest mailboxes first."""
    here = bus.broker.reply_topic()
    found: list[ActorHealth] = []
    async with bus.subscribe(here) as answers:
        await bus.publish(ROLL_CALL, b"", reply_to=here)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while (left_s := deadline_s - loop.time()) > 0:
            try:
                answer = await answers.recv(left_s)
            except StreamEmpty:
                break
            if answer is not None:
                found += answer.decode(list[ActorHealth])
    return sorted(found, key=lambda actor: (-actor.mailbox, -actor.restarts, actor.address))


def state_of(subscriber: SubscriberSnapshot, at_ns: int) -> str:
    """The most important fact about a subscriber, in a few words."""
    if not subscriber.connected:
        return "not connected"
    if is_slow(subscriber, at_ns):
        return f"slow for {(at_ns - subscriber.waiting_since_ns) / 1e9:,.0f} s"
    if subscriber.dropped:
        return "lost messages"
    return "durable" if subscriber.durable else "group" if subscriber.group else "ok"


SUBSCRIBER_COLUMNS = ("subscriber", "pattern", "client", "state", "waiting", "delivered", "dropped", "dead", "behind")


def subscriber_row(each: SubscriberSnapshot, at_ns: int) -> tuple[Cell, ...]:
    return (
        each.name,
        each.pattern,
        each.client or "-",
        state_of(each, at_ns),
        each.waiting,
        each.delivered,
        each.dropped,
        each.dead,
        each.behind,
    )


def tables(now: HubLook, before: HubLook | None = None) -> dict[str, LookTable]:
    """The tables by name. Slow subscribers come first. Rates of topics and clients are computed from `before`."""
    snapshot = now.snapshot
    return {
        "subscribers": LookTable(
            SUBSCRIBER_COLUMNS,
            [
                subscriber_row(each, snapshot.at_ns)
                for each in sorted(
                    snapshot.subscribers, key=lambda each: (not is_slow(each, snapshot.at_ns), -each.waiting)
                )
            ],
        ),
        "clients": LookTable(
            ("client", "identity", "address", "subscriptions", "published", "per s", "delivered", "held up"),
            _clients(now, before),
        ),
        "topics": LookTable(("topic", "published", "per s"), _topics(now, before)),
        "actors": LookTable(
            ("actor", "kind", "health", "mailbox", "handled", "restarts"),
            [(each.address, each.kind, each.health, each.mailbox, each.handled, each.restarts) for each in now.actors],
        ),
        "kernels": LookTable(
            ("kernel", "language", "shared by"), [(each.id, each.language, each.shared_by) for each in now.kernels]
        ),
        "channels": LookTable(
            ("channel", "pattern", "schema", "producers", "consumers"),
            [
                (each.channel, each.pattern, each.schema_version or "-", len(each.producers), len(each.consumers))
                for each in now.channels
            ],
        ),
    }


def _seconds(now: HubLook, before: HubLook | None) -> float:
    """The time between two looks at the same run of a hub; 0 if they cannot be compared."""
    if before is None or before.snapshot.hub != now.snapshot.hub:
        return 0.0
    return (now.snapshot.at_ns - before.snapshot.at_ns) / 1e9


def _rate(count: int, known: int | None, seconds: float) -> int:
    return round(max(0, count - known) / seconds) if known is not None and seconds > 0 else 0


def _clients(now: HubLook, before: HubLook | None) -> list[tuple[Cell, ...]]:
    seconds = _seconds(now, before)
    known = {each.session: each.published for each in before.snapshot.clients} if before is not None else {}
    return [
        (
            each.name,
            each.identity,
            each.address,
            each.subscriptions,
            each.published,
            _rate(each.published, known.get(each.session), seconds),
            each.delivered,
            each.held_up,
        )
        for each in now.snapshot.clients
    ]


def _topics(now: HubLook, before: HubLook | None) -> list[tuple[Cell, ...]]:
    seconds = _seconds(now, before)
    known = {each.topic: each.published for each in before.snapshot.topics} if before is not None else {}
    return [
        (each.topic, each.published, _rate(each.published, known.get(each.topic), seconds))
        for each in now.snapshot.topics
    ]


def chosen(table: LookTable, wanted: str, by: int | None, *, falling: bool) -> Sequence[tuple[Cell, ...]]:
    """The rows that contain a text, sorted by the column `by`; unsorted if `by` is None."""
    rows = [row for row in table.rows if wanted.lower() in " ".join(map(str, row)).lower()]
    if by is None:
        return rows
    return sorted(rows, key=lambda row: (isinstance(row[by], str), row[by]), reverse=falling)
