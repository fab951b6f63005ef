"""Requests: matches answers with waiting requests, including answers that arrive early or late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from trunkline.brokers.broker import Broker, Lane
from trunkline.bus.lifecycle import Lifecycle
from trunkline.bus.publisher import BusPublisher
from trunkline.bus.replay import Replayed
from trunkline.delivery.dead_letters import describe, traceback_of
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.requests import Orphan, OrphanBox, Requests, Why
from trunkline.errors import BusClosed, InvalidPayload, NoResponders, RequestFailed, RequestTimeout
from trunkline.message import Message, MessageType
from trunkline.settings import Settings
from trunkline.topic import REPLIES

ERROR = MessageType.ERROR
MAX_DETAIL = 10_000
"""The limit for an error's text and traceback: an answer must not be larger than its request could be."""


class ErrorAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of an ERROR response."""

    error_type: str
    detail: str
    traceback: str = ""


class AwaitedAnswer(msgspec.Struct):
    """An open request of a bus. Its future is created when a task waits for the answer."""

    request_id: str
    sender: str
    topic: str
    sent_at_s: float
    timeout_s: float
    got: Message | None = None
    error: Exception | None = None
    future: asyncio.Future[Message] | None = None
    accepts: None = None

    @property
    def deadline_s(self) -> float:
        return self.sent_at_s + self.timeout_s

    def answer(self, message: Message) -> bool:
        self.got = message
        if self.future is not None and not self.future.done():
            self.future.set_result(message)
        return True

    def fail(self, error: Exception) -> None:
        self.error = error
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Requester:
    def __init__(self, broker: Broker, name: str, settings: Settings, publisher: BusPublisher, life: Lifecycle) -> None:
        self._broker = broker
        self._name = name
        self._timeout_s = settings.request_timeout_s
        self._orphan_age_s = settings.orphans.max_age_s
        self._publisher = publisher
        self._life = life
        self._requests = Requests(settings.orphans)
        self._requests.orphans.ledger = broker.served.ledger
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reply_topic = broker.reply_topic()
        self._untap = [broker.tap(topic, self._take_answer) for topic in (self.reply_topic, REPLIES)]
        publisher.unserved = self._fail_unserved
        broker.on_unserved(self._fail_unserved)
        self.close = self._requests.close
        """Removes a request."""

    def __len__(self) -> int:
        """The number of requests that wait for an answer."""
        return len(self._requests)

    def answer(self, to: Message, type: MessageType, value: object) -> Awaitable[str]:
        return self._publisher.publish(self._compose(to, type, value))

    def answer_now(self, to: Message, type: MessageType, value: object) -> Awaitable[object] | None:
        """As `answer`, but immediately. Returns an awaitable if there is more to do, else None."""
        lane = self._publisher.lane_of_answer(to.reply_to or REPLIES, to.trace)
        return self._publisher.publish_now(self._compose(to, type, value, lane), lane)

    def _compose(self, to: Message, type: MessageType, value: object, lane: Lane | None = None) -> Message:
        topic, request_id = to.reply_to or REPLIES, to.request_id or to.id
        answer = self._publisher.compose(
            topic, value, type, to.sender or None, request_id, to.correlation_id, None, lane
        )
        # The answer belongs to the same trace as the request.
        return answer if to.trace is None else replace(answer, trace=to.trace)

    def answer_error(self, to: Message, error: BaseException) -> Awaitable[str]:
        return self.answer_failure(to, describe(error), traceback_of(error))

    def answer_failure(self, to: Message, reason: str, traceback: str = "") -> Awaitable[str]:
        kind, _, detail = reason.partition(": ")
        detail = detail[:MAX_DETAIL]
        # The end of a traceback shows where the error was raised. If the text fills the answer, the traceback is left
        # out.
        start = max(0, len(traceback) + len(detail) - MAX_DETAIL)
        return self.answer(to, ERROR, ErrorAnswer(kind, detail, traceback[start:]))

    def expect(self, request_id: str, topic: str, timeout_s: float | None, *, timed: bool = True) -> AwaitedAnswer:
        """Register a request, before it is sent. The caller must close it in the table in every case.

        With `timed`, its time limit starts now, otherwise when `time` is called.
        """
        self._life.check_open()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if timeout_s is None:
            timeout_s = self._timeout_s
        awaited = AwaitedAnswer(request_id, self._name, topic, self._loop.time(), timeout_s)
        self._requests.open(awaited, timed=False)
        if timed:
            self.time(awaited)
        return awaited

    def wait(self, awaited: AwaitedAnswer) -> asyncio.Future[Message]:
        """The future of the answer to a request. Call this once."""
        assert self._loop is not None
        awaited.future = future = self._loop.create_future()
        if awaited.error is not None:
            future.set_exception(awaited.error)
        elif awaited.got is not None:
            future.set_result(awaited.got)
        return future

    def time(self, awaited: AwaitedAnswer) -> None:
        """Start the time limit of a request."""
        if awaited.request_id in self._requests:
            self._requests.time(awaited)
            if self._timer is None or self._timer.when() > awaited.sent_at_s + awaited.timeout_s:
                self._watch()

    def _watch(self) -> None:
        """Set the timer for the next request that is due. There is one timer for all requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._requests.next_deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        for pending in self._requests.due(asyncio.get_running_loop().time()):
            responders = len(self._broker.subscribers(pending.topic))
            pending.fail(RequestTimeout(pending.request_id, pending.topic, pending.timeout_s, responders))
        self._watch()

    def _fail_unserved(self, message: Message, nearest: Sequence[str]) -> None:
        """Fail a request that has no subscriber.

        A request that was sent by hand is not failed: it may still be answered.
        """
        awaited = self._requests.find(message.request_id or "")
        if isinstance(awaited, AwaitedAnswer) and awaited.topic != REPLIES and awaited.got is None:
            awaited.fail(NoResponders(awaited.request_id, message.topic, awaited.timeout_s, nearest))

    def _take_answer(self, message: Message) -> None:
        if not self._requests.answer(message):
            self._requests.keep_orphan(message, asyncio.get_running_loop().time())

    def record_in(self, ledger: Ledger) -> None:
        """Record the fates of messages in this ledger from now on."""
        self._requests.orphans.ledger = ledger

    def recall_orphans(self) -> None:
        """Load stored orphans that are not too old to be claimed."""
        now = asyncio.get_running_loop().time()
        for message, why, age_s in self._stored_orphans(self._orphan_age_s):
            self._requests.orphans.restore(Orphan(message, why, now - age_s))

    def _stored_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        return [] if self._broker.store is None else self._broker.store.recall_orphans(max_age_s)

    def replay_orphans(self, request_id: str | None, max_age_s: float) -> Replayed:
        now = asyncio.get_running_loop().time()
        known = {orphan.message.seq for orphan in self._requests.orphans}
        ids: list[str] = []
        for message, why, _ in self._stored_orphans(max_age_s):
            if message.seq in known or (request_id is not None and message.request_id != request_id):
                continue
            ids.append(message.id)
            self._requests.replay_orphan(Orphan(message, why, now))
        return Replayed(tuple(ids))

    @property
    def orphans(self) -> OrphanBox:
        """The current orphans. Those that are too old are removed first."""
        self._requests.orphans.expire(asyncio.get_running_loop().time())
        return self._requests.orphans

    @property
    def kept(self) -> int:
        """The number of orphans."""
        return len(self._requests.orphans)

    def end(self) -> None:
        """Called when the bus closes. All waiting requests fail with BusClosed."""
        for stop in self._untap:
            stop()
        if self._timer is not None:
            self._timer.cancel()
        for pending in self._requests:
            pending.fail(BusClosed(self._name))


def expects_ack(message: Message) -> bool:
    """Whether the `reply_to` of a message gets a notice that it was handled or is dead.

    A request gets its answer instead.
    """
    return message.requires_ack and message.reply_to is not None and message.type is not MessageType.REQUEST


def read(answer: Message, reply: Any, max_bytes: int) -> Any:
    """The typed value of an answer; raises RequestFailed if the responder failed."""
    if answer.type is ERROR:
        try:
            failure = answer.decode(ErrorAnswer, max_bytes=max_bytes)
        except InvalidPayload as error:
            raise RequestFailed(answer.request_id or "", "UnreadableError", str(error)) from error
        raise RequestFailed(answer.request_id or "", failure.error_type, failure.detail, failure.traceback)
    return answer if reply is Message else answer.decode(reply, max_bytes=max_bytes)
