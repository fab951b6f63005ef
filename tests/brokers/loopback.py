"""A second adapter, in this process, without a hub or a wire. Code that remote brokers share must work on it too."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from trunkline import Feature, Settings, World, columns
from trunkline.brokers.remote.adapter import (
    NEVER_ALONE,
    FateRange,
    Shared,
    SubscribeRequest,
    SubscriptionTerms,
    TopicTerms,
)
from trunkline.brokers.remote.broker import RemoteBroker
from trunkline.brokers.remote.outbox import SentBatch
from trunkline.brokers.remote.shared import SharedConnection
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.delivery.pending import Failures
from trunkline.errors import HubUnavailable
from trunkline.message import Message
from trunkline.topic import matches


class Terms(msgspec.Struct, frozen=True):
    topic: str
    confirm: bool
    durable: bool
    heard: bool = True
    channel: str | None = None
    schema: str | None = None
    full: tuple[tuple[str, int], ...] = ()


class Opened(msgspec.Struct, frozen=True):
    role: str = ""
    report_s: float | None = 0.1


class Head(msgspec.Struct, frozen=True):
    subscription: int
    first: int
    topic: str
    count: int
    origin: int
    position: int
    priority: int
    seqs: list[int] | None = None


class Limits(msgspec.Struct, frozen=True):
    window: int
    window_bytes: int
    max_frame_bytes: int = 1 << 26


@dataclass
class Opening:
    """A subscription at the server."""

    request: SubscribeRequest
    credit: float
    credit_bytes: float
    waiting: deque[tuple[Head, bytes]] = field(default_factory=deque)
    unacknowledged: dict[int, tuple[Head, bytes]] = field(default_factory=dict)

    @property
    def is_member(self) -> bool:
        return self.request.group is not None or self.request.durable


class LoopbackServer:
    """Numbers batches and forwards them. Topics that start with `d.` are stored, and so confirmed."""

    def __init__(self, *, window: int = 1000, window_bytes: int = 1 << 26) -> None:
        self.limits = Limits(window, window_bytes)
        self.adapters: list[LoopbackAdapter] = []
        self.up = True
        self.confirms = True
        """If not, batches are taken and not confirmed: as if the confirmations got lost."""
        self.seq = 0
        self.stored: dict[str, list[str]] = {}
        self.resent = 0
        self.batches: list[list[bytes]] = []
        """The payloads of each batch that came."""
        self.withdrawn: list[int] = []
        self.unconfirmed: list[tuple[LoopbackAdapter, int, int]] = []
        self.left: dict[str, dict[int, tuple[Head, bytes]]] = {}
        """What members had not acknowledged when they were cut off."""

    def take(self, adapter: LoopbackAdapter, batch: SentBatch) -> None:
        topic, messages = batch.pending.topic, batch.pending.messages
        self.resent += batch.resent
        self.batches.append([bytes(message.payload) for message in messages])
        if batch.lane.durable:
            known = self.stored.setdefault(topic, [])
            if batch.resent and messages[0].id in known:
                self._confirm(adapter, batch.number, self.seq)
                return
            known += [message.id for message in messages]
        first = self.seq + 1
        self.seq += batch.size
        for other in self.adapters:
            for opening in other.openings.values():
                if matches(opening.request.pattern, topic):
                    number, priority = opening.request.subscription, messages[0].priority
                    head = Head(number, first, topic, batch.size, adapter.origin, batch.position, priority)
                    opening.waiting.append((head, batch.data))
                    other.pump(opening)
        self._confirm(adapter, batch.number, first)

    def _confirm(self, adapter: LoopbackAdapter, number: int, first: int) -> None:
        self.unconfirmed.append((adapter, number, first))
        if self.confirms:
            self.confirm_all()

    def confirm_all(self) -> None:
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for adapter, number, first in unconfirmed:
            if adapter.live:
                adapter.shared.taken([(number, number, first)], {})

    def cut(self) -> None:
        """All connections end, and confirmations in transit are lost."""
        self.unconfirmed.clear()
        for adapter in self.adapters:
            adapter.cut()


class LoopbackAdapter:
    name = "loopback"
    url = "loopback:"
    connect_s = 5.0
    max_unsent_bytes = 1 << 26
    run = "1"
    keeps_dead_letters = False
    backlog = 0

    def __init__(self, server: LoopbackServer, origin: int, max_inbox_bytes: int) -> None:
        self.server = server
        self.origin = origin
        self.max_inbox_bytes = max_inbox_bytes
        self.alone_bytes = NEVER_ALONE
        self.checks_alone = False
        self.names_full = True
        self.live = False
        self.malformed = 0
        self.openings: dict[int, Opening] = {}
        self.reports: list[FateRange] = []
        self.acknowledged: list[tuple[int, int]] = []
        self.delivered_bytes = 0
        self.shared: Shared
        self._line: list[SentBatch] = []
        self._waiting: list[asyncio.Future[None]] = []
        server.adapters.append(self)

    def attach(self, shared: Shared) -> None:
        self.shared = shared

    def lacks(self, feature: Feature) -> bool:
        return False

    def open(self) -> None:
        if self.server.up and not self.live:
            self.live = True
            self.shared.connected(self.server.limits)
            for waiter in self._waiting:
                waiter.set_result(None)
            self._waiting.clear()

    async def ready(self) -> None:
        self.open()
        if not self.live:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    async def aclose(self) -> None:
        self.live = False
        self.server.adapters.remove(self)

    def cut(self) -> None:
        if self.live:
            self.live = False
            self._line.clear()
            for opening in self.openings.values():
                if opening.is_member:
                    kept = {**opening.unacknowledged, **{head.first: (head, body) for head, body in opening.waiting}}
                    self.server.left.setdefault(opening.request.name, {}).update(kept)
            self.openings.clear()
            self.shared.disconnected()

    # Publishing

    async def inquire(self, topic: str) -> None:
        await self.ready()
        self.inquire_soon(topic)

    def inquire_soon(self, topic: str) -> None:
        stored = topic.startswith("d.")
        self.shared.topic_changed(Terms(topic, confirm=stored, durable=stored))

    async def check(self, terms: TopicTerms, messages: Sequence[Message]) -> tuple[list[Message], Failures]:
        return list(messages), []

    def encode(self, batch: SentBatch) -> bytes:
        return columns.pack_batch(batch.pending.messages, plain=batch.pending.plain, alike=batch.pending.alike)

    def send(self, batch: SentBatch) -> None:
        self._line.append(batch)

    def flush(self) -> None:
        line, self._line = self._line, []
        for batch in line:
            self.server.take(self, batch)

    def send_now(self, batch: SentBatch) -> None:
        self.send(batch)
        self.flush()

    def withdraw(self, number: int, reason: str) -> None:
        self.server.withdrawn.append(number)

    async def sync(self) -> int:
        await self.ready()
        self.flush()
        return self.server.seq

    # Subscribing

    def subscribe(self, request: SubscribeRequest, done: Callable[[SubscriptionTerms | Exception], None]) -> None:
        if not self.live:
            done(HubUnavailable(self.url, "cut"))
            return
        endless = float("inf")
        opening = self.openings[request.subscription] = Opening(
            request,
            endless if request.credit < 0 else request.credit,
            endless if request.credit_bytes < 0 else request.credit_bytes,
        )
        done(Opened())
        for head, body in self.server.left.pop(request.name, {}).values():
            opening.waiting.append((head, body))
        self.pump(opening)

    def pump(self, opening: Opening) -> None:
        while opening.waiting and opening.credit >= opening.waiting[0][0].count and opening.credit_bytes > 0:
            head, body = opening.waiting.popleft()
            opening.credit -= head.count
            opening.credit_bytes -= len(body)
            if opening.is_member:
                opening.unacknowledged[head.first] = (head, body)
            self.delivered_bytes += len(body)
            self.shared.deliver(head, memoryview(body))

    def unsubscribe(self, subscription: int, pattern: str) -> None:
        self.openings.pop(subscription, None)

    def stop(self, subscription: int) -> None:
        self.openings[subscription].credit = 0

    def credit(self, subscription: int, messages: int, size: int) -> None:
        if (opening := self.openings.get(subscription)) is not None:
            opening.credit += messages
            opening.credit_bytes += size
            self.pump(opening)

    def acknowledge(self, subscription: int, ranges: list[tuple[int, int]]) -> None:
        self.acknowledged += ranges
        if (opening := self.openings.get(subscription)) is not None:
            for first, last in ranges:
                for seq in range(first, last + 1):
                    opening.unacknowledged.pop(seq, None)

    def settle(
        self, subscription: int, seq: int, fate: Fate | None, reason: str, letter: DeadLetter | None = None
    ) -> None:
        self.acknowledge(subscription, [(seq, seq)])

    def report(
        self, subscription: int, ranges: Sequence[FateRange], letters: Sequence[DeadLetter], *, asked: bool
    ) -> None:
        if self.live:
            self.reports += ranges

    def link(self, pattern: str, topic: str) -> None:
        raise AssertionError("it offers no links")

    unlink = link


class LoopbackBroker(RemoteBroker):
    name = "loopback"
    features = frozenset({Feature.GROUPS, Feature.DURABLE, Feature.BACKPRESSURE, Feature.ACKNOWLEDGEMENT})

    def __init__(
        self,
        server: LoopbackServer,
        world: World,
        settings: Settings | None = None,
        *,
        origin: int = 1,
        max_inbox_bytes: int = 1 << 26,
    ) -> None:
        settings = settings or Settings()
        adapter = LoopbackAdapter(server, origin, max_inbox_bytes)
        shared = SharedConnection.of((id(server), origin, settings), lambda: adapter, settings)
        super().__init__(shared, world, settings)
        self.adapter = adapter
