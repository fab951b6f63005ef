"""Request and response: the second layer of the bus, on the table of requests and orphans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, Unpack, overload

import msgspec

from trunkline.brokers.broker import Broker
from trunkline.bus.publishing import Publishing
from trunkline.delivery.requests import OrphanBox, Pending, Requests
from trunkline.errors import BusClosed, InvalidPayload, RequestFailed, RequestTimeout
from trunkline.hooks.hook import Hook
from trunkline.message import Fields, Message, MessageType
from trunkline.settings import Settings
from trunkline.topic import REPLIES, REPLY_PREFIX

T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """The payload of an ERROR response."""

    error_type: str
    detail: str


class Requesting(Publishing):
    def __init__(self, broker: Broker, name: str, settings: Settings | None, hooks: Iterable[Hook]) -> None:
        super().__init__(broker, name, settings, hooks)
        self._requests = Requests(self.settings.orphans)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._reply_topic = f"{REPLY_PREFIX}{self._ids.next(self._time_ns())}"
        self._untap = [broker.tap(topic, self._take_answer) for topic in (self._reply_topic, REPLIES)]
        self._listeners: list[Callable[[Message, bool], None]] = []

    @overload
    async def request(
        self, topic: str, payload: object = ..., *, timeout_s: float | None = ..., **fields: Unpack[Fields]
    ) -> Any: ...
    @overload
    async def request(
        self,
        topic: str,
        payload: object = ...,
        *,
        reply: type[T],
        timeout_s: float | None = ...,
        **fields: Unpack[Fields],
    ) -> T: ...
    async def request(
        self,
        topic: str,
        payload: object = b"",
        *,
        reply: Any = Any,
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> Any:
        """Ask, and wait for the first answer, as a `reply` (a type, or Message for the answer itself).

        Raises RequestTimeout (after 30 s by default), RequestFailed if the responder fails, InvalidPayload if the
        answer is no `reply`. However it ends, also cancelled, nothing of the request stays behind.
        """
        timeout_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
        request_id = fields.get("request_id") or self._ids.next(self._time_ns())
        asked: Fields = {"type": MessageType.REQUEST, "reply_to": self._reply_topic, **fields, "request_id": request_id}
        # Registered before it is sent: the fastest answer finds it.
        future = self._expect(request_id)
        try:
            message = self._out.stamp(Message(topic=topic, payload=payload, **self._fields(asked)))
            await self._out.send([message])
            try:
                return _read(await self._wait(future, message, timeout_s), reply)
            except RequestTimeout:
                self.handled(message, False)
                raise
        finally:
            self._forget(request_id)

    async def try_request(self, topic: str, payload: object = b"", **options: Any) -> Any:
        """Like `request`, but None if no answer comes in time, or the bus is closed meanwhile."""
        try:
            return await self.request(topic, payload, **options)
        except (RequestTimeout, BusClosed):
            return None

    async def wait_reply(self, request_id: str, *, reply: Any = Any, timeout_s: float | None = None) -> Any:
        """Wait for the answer to a request that was sent by hand; one that came before is claimed."""
        timeout_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
        future = self._expect(request_id)
        try:
            asked = Message(topic=REPLIES, request_id=request_id)
            return _read(await self._wait(future, asked, timeout_s), reply)
        finally:
            self._forget(request_id)

    async def _wait(self, future: asyncio.Future[Message], asked: Message, timeout_s: float) -> Message:
        def give_up() -> None:
            if not future.done():
                responders = len(self.broker.subscribers(asked.topic))
                future.set_exception(RequestTimeout(asked.request_id or "", asked.topic, timeout_s, responders))

        timer = asyncio.get_running_loop().call_later(timeout_s, give_up)
        try:
            return await future
        finally:
            timer.cancel()

    async def respond(self, request: Message, value: object) -> None:
        """Answer a request. Handlers need not call it: what they return is the answer."""
        await self._answer(request, MessageType.RESPONSE, value)

    async def respond_error(self, request: Message, error: BaseException) -> None:
        """Answer a request with an error: the requester gets RequestFailed."""
        await self._answer(request, MessageType.ERROR, Failure(type(error).__name__, str(error)))

    async def acknowledge(self, message: Message) -> None:
        """Tell the `reply_to` of a message that it was handled. Handlers need not call it."""
        await self._answer(message, MessageType.ACK, b"")

    async def _answer(self, to: Message, type: MessageType, value: object) -> None:
        await self.post(
            Message(
                topic=to.reply_to or REPLIES,
                payload=value,
                content_type="" if value.__class__ is bytes else self._content_type,
                type=type,
                recipient=to.sender or None,
                request_id=to.request_id or to.id,
                correlation_id=to.correlation_id,
                trace=to.trace,
            )
        )

    # Answers

    def _expect(self, request_id: str) -> asyncio.Future[Message]:
        """Register a request, before it is sent. Whatever ends the future unregisters it."""
        if self._out.closed:
            raise BusClosed(self.name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()

        def answer(message: Message) -> bool:
            if not future.done():
                future.set_result(message)
            return True

        self._waiting[request_id] = future
        self._requests.open(Pending(request_id, self.name, loop.time(), answer))
        return future

    def _forget(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
        self._requests.close(request_id)

    def _take_answer(self, message: Message) -> None:
        self._requests.answer(message, asyncio.get_running_loop().time())

    @property
    def orphans(self) -> OrphanBox:
        """Answers nobody waits for (yet): kept for a while, searchable, claimed by the request they belong to."""
        self._requests.orphans.expire(asyncio.get_running_loop().time())
        return self._requests.orphans

    def _end_requests(self) -> None:
        """The bus closes: let go of everyone who waits, with BusClosed."""
        for stop in self._untap:
            stop()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(BusClosed(self.name))

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
