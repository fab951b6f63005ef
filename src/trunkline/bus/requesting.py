"""Request and response: the second layer of the bus, on the table of requests and orphans."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, Unpack, overload

import msgspec

from trunkline.brokers.broker import Broker
from trunkline.bus.outgoing import State
from trunkline.bus.publishing import RAW, Publishing, encode
from trunkline.delivery.dead_letters import describe
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.requests import Orphan, OrphanBox, Pending, Requests, Why
from trunkline.errors import BusClosed, InvalidPayload, RequestFailed, RequestTimeout, UsageError
from trunkline.hooks.hook import Hook
from trunkline.message import NORMAL, Fields, Message, MessageType
from trunkline.settings import Settings
from trunkline.topic import REPLIES, endpoint, validate_topic

T = TypeVar("T")

MAX_DETAIL = 10_000
"""Of an error's text, so much is sent: an answer must fit where its request did."""


class Failure(msgspec.Struct, frozen=True):
    """The payload of an ERROR response."""

    error_type: str
    detail: str


class Requesting(Publishing):
    def __init__(self, broker: Broker, name: str, settings: Settings | None, hooks: Iterable[Hook]) -> None:
        super().__init__(broker, name, settings, hooks)
        self._requests = Requests(self.settings.orphans)
        self._requests.orphans.ledger = broker.roster.ledger
        self._timer: asyncio.TimerHandle | None = None
        self._reply_topic = broker.reply_topic()
        self._untap = [broker.tap(topic, self._take_answer) for topic in (self._reply_topic, REPLIES)]
        self._listeners: list[Callable[[Message, bool], None]] = []

    @overload
    async def request(
        self,
        topic: str = ...,
        payload: object = ...,
        *,
        to: str | None = ...,
        timeout_s: float | None = ...,
        **fields: Unpack[Fields],
    ) -> Any: ...
    @overload
    async def request(
        self,
        topic: str = ...,
        payload: object = ...,
        *,
        to: str | None = ...,
        reply: type[T],
        timeout_s: float | None = ...,
        **fields: Unpack[Fields],
    ) -> T: ...
    async def request(
        self,
        topic: str = "",
        payload: object = b"",
        *,
        to: str | None = None,
        reply: Any = Any,
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> Any:
        """Ask, and wait for the first answer, as a `reply` (a type, or Message for the answer itself).

        Give a topic, or an endpoint: `request(to="agent2", payload=…)` asks whom `send("agent2", …)` reaches.
        Raises RequestTimeout (after 30 s by default), RequestFailed if the responder fails, InvalidPayload if the
        answer is no `reply`. However it ends, also cancelled, nothing of the request stays behind.
        """
        if to is not None:
            if topic:
                raise UsageError(f"either a topic, {topic!r}, or to={to!r}: not both")
            topic, fields["recipient"] = endpoint(to), to
        request_id = fields.get("request_id") or self.ids.next(self.time_ns())
        # Registered before it is sent: the fastest answer finds it.
        answer = self._expect(request_id, topic, timeout_s)
        try:
            if fields:
                asked: Fields = {"type": MessageType.REQUEST, "reply_to": self._reply_topic, **fields}
                asked["request_id"] = request_id
                message = self.message(topic, payload, **asked)
            else:
                message = self._compose(topic, payload, MessageType.REQUEST, None, request_id, None, self._reply_topic)
            await self._out.launch(message)
            try:
                got = await answer
            except RequestTimeout:
                self.handled(message, False)
                raise
        except BaseException:
            # Refused, timed out, cancelled, closed. An answer has closed the request by itself.
            self._requests.close(request_id)
            raise
        return _read(self.opened(got), reply)

    async def try_request(self, topic: str = "", payload: object = b"", **options: Any) -> Any:
        """Like `request`, but None if no answer comes in time, or the bus is closed meanwhile."""
        try:
            return await self.request(topic, payload, **options)
        except (RequestTimeout, BusClosed):
            return None

    async def wait_reply(self, request_id: str, *, reply: Any = Any, timeout_s: float | None = None) -> Any:
        """Wait for the answer to a request that was sent by hand; one that came before is claimed."""
        answer = self._expect(request_id, REPLIES, timeout_s)
        try:
            got = await answer
        except BaseException:
            self._requests.close(request_id)
            raise
        return _read(self.opened(got), reply)

    def respond(self, request: Message, value: object) -> Awaitable[str]:
        """Answer a request. Handlers need not call it: what they return is the answer."""
        return self._answer(request, MessageType.RESPONSE, value)

    def respond_error(self, request: Message, error: BaseException) -> Awaitable[str]:
        """Answer a request with an error: the requester gets RequestFailed."""
        kind, _, detail = describe(error).partition(": ")
        return self._answer(request, MessageType.ERROR, Failure(kind, detail[:MAX_DETAIL]))

    def acknowledge(self, message: Message) -> Awaitable[str]:
        """Tell the `reply_to` of a message that it was handled. Handlers need not call it."""
        return self._answer(message, MessageType.ACK, b"")

    def _answer(self, to: Message, type: MessageType, value: object) -> Awaitable[str]:
        answer = self._compose(
            to.reply_to or REPLIES, value, type, to.sender or None, to.request_id or to.id, to.correlation_id, None
        )
        return self._out.launch(answer)

    def _compose(
        self,
        topic: str,
        payload: object,
        type: MessageType,
        recipient: str | None,
        request_id: str,
        correlation_id: str | None,
        reply_to: str | None,
    ) -> Message:
        """A message like `message` makes it, for the two kinds that every request needs: a fifth of the time."""
        body, content_type = (payload, RAW) if payload.__class__ is bytes else encode(payload, self._content_type)
        now_ns = self.time_ns()
        message = Message(
            self.ids.next(now_ns),
            validate_topic(topic),
            body,
            now_ns,
            self._sequence.next(),
            self.name,
            content_type,
            type,
            recipient,
            NORMAL,
            None,
            request_id,
            correlation_id,
            reply_to,
        )
        return message if len(body) <= self.small else self._out.weigh(message)

    # Answers

    def _expect(self, request_id: str, topic: str, timeout_s: float | None) -> asyncio.Future[Message]:
        """Register a request, before it is sent. Whoever calls this closes it in the table, whatever happens."""
        if self._out.state is not State.OPEN:
            self._out.check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()

        def answer(message: Message) -> bool:
            if not future.done():
                future.set_result(message)
            return True

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        timeout_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
        now = loop.time()
        self._requests.open(Pending(request_id, self.name, topic, now, timeout_s, answer, fail))
        if self._timer is None or self._timer.when() > now + timeout_s:
            self._watch()
        return future

    def _watch(self) -> None:
        """One timer for all requests: it rings when the next one is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._requests.next_deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        for pending in self._requests.due(asyncio.get_running_loop().time()):
            responders = len(self.broker.subscribers(pending.topic))
            pending.fail(RequestTimeout(pending.request_id, pending.topic, pending.timeout_s, responders))
        self._watch()

    def _take_answer(self, message: Message) -> None:
        if not self._requests.answer(message):
            self._requests.keep_orphan(message, self.now())

    def record_in(self, ledger: Ledger) -> None:
        """From now on, somebody writes down what becomes of messages."""
        self.broker.roster.record_in(ledger)
        self._requests.orphans.ledger = ledger

    def _recall_orphans(self) -> None:
        """Orphans that the broker has stored, as far as they are not too old to be claimed."""
        now = self.now()
        for message, why, age_s in self._stored_orphans(self.settings.orphans.max_age_s):
            self._requests.orphans.restore(Orphan(message, why, now - age_s))

    def _stored_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        return [] if self.broker.store is None else self.broker.store.recall_orphans(max_age_s)

    @property
    def orphans(self) -> OrphanBox:
        """Answers nobody waits for (yet): kept for a while, searchable, claimed by the request they belong to."""
        self._requests.orphans.expire(asyncio.get_running_loop().time())
        return self._requests.orphans

    def _end_requests(self) -> None:
        """The bus closes: let go of everyone who waits, with BusClosed."""
        for stop in self._untap:
            stop()
        if self._timer is not None:
            self._timer.cancel()
        for pending in self._requests:
            pending.fail(BusClosed(self.name))

    # How handling went, for circuit breakers

    def on_handled(self, listener: Callable[[Message, bool], None]) -> None:
        """Call `listener(message, well)` after each handling, and with False for a request nobody answered."""
        self._listeners.append(listener)

    def handled(self, message: Message, well: bool) -> None:
        for listener in self._listeners:
            listener(message, well)

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def _read(answer: Message, reply: Any) -> Any:
    """The typed value of an answer; raises RequestFailed if the responder said that it failed."""
    if answer.type is MessageType.ERROR:
        try:
            failure = answer.decode(Failure)
        except InvalidPayload as error:
            raise RequestFailed(answer.request_id or "", "UnreadableError", str(error)) from error
        raise RequestFailed(answer.request_id or "", failure.error_type, failure.detail)
    return answer if reply is Message else answer.decode(reply)
