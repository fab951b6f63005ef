"""The adapter of a hub: writes batches, subscriptions and acknowledgements to its connection."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from msgspec.structs import asdict, replace

from trunkline import columns
from trunkline.brokers.broker import Feature
from trunkline.brokers.hub.connection import Answer, Connection
from trunkline.brokers.hub.contract import DEAD_LETTER, TAKEN_OUT, Contracts
from trunkline.brokers.hub.refusals import of_subscription, refusal
from trunkline.brokers.remote.adapter import (
    NEVER_ALONE,
    FateRange,
    Rejection,
    Shared,
    SubscribeRequest,
    SubscriptionTerms,
)
from trunkline.brokers.remote.outbox import SentBatch
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.errors import HubRefused, HubUnavailable, Refused
from trunkline.message import NORMAL
from trunkline.wire import control, frames
from trunkline.wire.frames import DeliverHead, PublishHead, SharedPayload

RETURNED = "returned"


class HubAdapter:
    name = "hub"

    def __init__(self, connection: Connection, max_message_bytes: int) -> None:
        self.connection = connection
        self.url = connection.url
        self.live = False
        self.connect_s = connection.settings.connect_s
        self.max_unsent_bytes = connection.settings.max_unsent_bytes
        self.max_inbox_bytes = connection.settings.max_inbox_bytes
        self.malformed = 0
        self.secrets: dict[str, str] = {}
        """The secrets of the reply topics here: the hub requires them for a subscription."""
        self.open = connection.open
        self.ready = connection.ready
        self.flush = connection.flush
        self.sync = connection.sync
        self.check = Contracts(connection, max_message_bytes).check
        self._memory = connection.memory
        self.alone_bytes = NEVER_ALONE
        self.checks_alone = False
        self.names_full = True
        self._shared: Shared

    def attach(self, shared: Shared) -> None:
        self._shared = shared
        connection = self.connection
        connection.protocol.deliver = shared.deliver_first
        connection.arrived = shared.arrived
        connection.protocol.deliver_shared = self._deliver_shared
        connection.listeners[control.TopicInfo] = shared.topic_changed
        connection.listeners[control.Taken] = self._taken
        connection.listeners[control.Error] = self._error
        connection.listeners[control.Dropped] = shared.dropped
        connection.listeners[control.Report] = lambda report: shared.report_now(report.subscription)
        connection.users.append(self)

    # The connection

    def connected(self, welcome: control.Welcome) -> None:
        self.live = True
        if self._memory.connected(welcome, self.connection.hub_process):
            self.connection.send(control.Maps())
        self._shared.connected(welcome)
        # Set only now, because messages that waited for this connection were encoded without shared memory.
        self.alone_bytes = self._memory.min_bytes(welcome)

    def disconnected(self) -> None:
        self.live = False
        self.alone_bytes = NEVER_ALONE
        self._memory.disconnected()
        self._shared.disconnected()

    def writable(self) -> None:
        self._shared.writable()

    @property
    def run(self) -> str:
        welcome = self.connection.welcome
        return "" if welcome is None else welcome.hub

    @property
    def keeps_dead_letters(self) -> bool:
        welcome = self.connection.welcome
        return welcome is not None and control.LETTERS_KEPT in welcome.features

    @property
    def backlog(self) -> int:
        return self.connection.backlog

    def lacks(self, feature: Feature) -> bool:
        welcome = self.connection.welcome
        return welcome is not None and feature.value not in welcome.features

    async def aclose(self) -> None:
        self.live = False
        await self.connection.aclose()

    # Publishing

    async def inquire(self, topic: str) -> None:
        try:
            await self.connection.ask(lambda number: control.Topic(id=number, topic=topic))
        except HubRefused as error:
            raise refusal(error.code, error.text, error.details) from error

    def inquire_soon(self, topic: str) -> None:
        self.connection.ask_soon(lambda number: control.Topic(id=number, topic=topic))

    def encode(self, batch: SentBatch) -> bytes:
        if (lone := batch.lone) is not None:
            fields = (
                batch.number,
                batch.lane.topic,
                1,
                lone.priority,
                lone.requires_ack,
                lone.ttl_s,
                batch.resent,
                batch.position,
                batch.urgent,
                batch.asks,
            )
            return frames.publish(fields, columns.pack_one(lone))
        pending = batch.pending
        run = pending.run
        if run is None:
            first = pending.messages[0]
            priority, requires_ack, ttl_s = first.priority, first.requires_ack, first.ttl_s
        else:
            priority, requires_ack, ttl_s = NORMAL, False, None
        head = PublishHead(
            batch.number,
            pending.topic,
            batch.size,
            priority,
            requires_ack,
            ttl_s,
            batch.resent,
            batch.position,
            batch.urgent,
            batch.asks,
        )
        if run is not None:
            body = columns.pack_run(*pending.columns(run), run.sender, run.content_type, pending.traces(run))
        elif batch.size == 1 and pending.size < self.alone_bytes:
            body = columns.pack_one(first)
        elif pending.size >= self.alone_bytes and (data := self._share(batch, head)):
            return data
        else:
            body = columns.pack_batch(pending.messages, plain=pending.plain, alike=pending.alike)
        return frames.publish(head, body)

    def _share(self, batch: SentBatch, head: PublishHead) -> bytes:
        """The frame of a message whose payload is in shared memory; empty if the payload is sent inline."""
        first = batch.pending.messages[0]
        if batch.size > 1 or len(first.payload) < self.alone_bytes:
            return b""
        lease = self._memory.put(first.payload)
        if lease is None:
            return b""
        batch.lease, batch.bytes = lease, lease.size
        envelope = columns.pack_envelope(first)
        return frames.publish_shared(head, SharedPayload(lease.descriptor, lease.size, lease.token, envelope))

    def send(self, batch: SentBatch) -> None:
        self.connection.queue((batch.data,))

    def send_now(self, batch: SentBatch) -> None:
        self.connection.send_now(batch.data)

    def withdraw(self, number: int, reason: str) -> None:
        self.connection.send(control.Withdraw(batch=number, reason=reason))

    def _taken(self, taken: control.Taken) -> None:
        if taken.yields:
            self._shared.give_way()
        rejections: dict[int, list[Rejection]] = {}
        for failure in taken.failures:
            if failure.code == control.NO_RESPONDERS:
                self._shared.unserved(failure.batch)([str(each) for each in failure.details.get("nearest", ())])
                continue
            rejections.setdefault(failure.batch, []).append(_rejection(failure))
        self._shared.taken(taken.runs, rejections)

    def _error(self, error: control.Error) -> None:
        text = f"the hub refused it: {error.text}"
        self._shared.rejected(error.batch, lambda: refusal(error.code, text, error.details))

    # Subscribing

    def _deliver_shared(self, head: DeliverHead, payload: SharedPayload) -> None:
        body = self._memory.take(payload)
        self.connection.send(control.Mapped(numbers=[payload.number]))
        self._shared.deliver_first(head, body)

    def subscribe(self, request: SubscribeRequest, done: Callable[[SubscriptionTerms | Exception], None]) -> None:
        secret = self.secrets.get(request.pattern, "")

        def answered(answer: Answer) -> None:
            if isinstance(answer, HubRefused):
                done(of_subscription(answer, request.name))
            else:
                assert isinstance(answer, control.Subscribed | HubUnavailable)
                done(answer)

        self.connection.ask_soon(
            lambda number: control.Subscribe(id=number, secret=secret, **asdict(request)), answered
        )

    def unsubscribe(self, subscription: int, pattern: str) -> None:
        self.secrets.pop(pattern, None)
        self._ask_soon(lambda number: control.Unsubscribe(id=number, subscription=subscription))

    def _ask_soon(self, make: Callable[[int], control.Ask]) -> None:
        """Send a request without waiting. If the connection is lost, it is repeated on the next one."""
        if self.live:
            self.connection.ask_soon(make)

    def stop(self, subscription: int) -> None:
        self.connection.send(control.Stop(subscription=subscription))

    def credit(self, subscription: int, messages: int, size: int) -> None:
        self.connection.send(control.Credit(subscription=subscription, messages=messages, bytes=size))

    def acknowledge(self, subscription: int, ranges: list[tuple[int, int]]) -> None:
        self.connection.send(control.Ack(subscription=subscription, ranges=ranges))

    def settle(
        self, subscription: int, seq: int, fate: Fate | None, reason: str, letter: DeadLetter | None = None
    ) -> None:
        if letter is not None:
            # The hub has the message: its payload need not be sent back, and might be too large for a frame.
            letter = replace(letter, message=replace(letter.message, payload=b""))
        self.connection.send(
            control.Nack(
                subscription=subscription,
                seq=seq,
                fate=RETURNED if fate is None else fate.value,
                reason=reason,
                letter=None if letter is None else _text_of(letter),
            )
        )

    def report(
        self, subscription: int, ranges: Sequence[FateRange], letters: Sequence[DeadLetter], *, asked: bool
    ) -> None:
        rows = [
            control.FateRow(fate=fate.value, first=first, last=last, count=last - first + 1, reason=reason)
            for fate, first, last, reason in ranges
        ]
        self.connection.send(
            control.Fates(
                subscription=subscription, rows=rows, letters=[_text_of(each) for each in letters], asked=asked
            )
        )

    def link(self, pattern: str, topic: str) -> None:
        self._ask_soon(lambda number: control.Link(id=number, pattern=pattern, topic=topic))

    def unlink(self, pattern: str, topic: str) -> None:
        self._ask_soon(lambda number: control.Unlink(id=number, pattern=pattern, topic=topic))


def _text_of(letter: DeadLetter) -> str:
    return base64.b64encode(letter.to_bytes()).decode()


def _rejection(failure: control.Failure) -> Rejection:
    def error() -> Refused:
        return refusal(failure.code, failure.text, failure.details)

    seq = failure.details.get("seq")
    return Rejection(
        failure.index,
        None if failure.code == DEAD_LETTER else error,
        takes_number=failure.code not in TAKEN_OUT,
        seq=seq if isinstance(seq, int) else None,
    )
