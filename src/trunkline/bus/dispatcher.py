"""The dispatcher: takes messages from a stream, runs the handler, and settles each message.

A message that was handled is acknowledged, and answered if it is a request. A message that failed is retried according
to the subscription, and finally becomes a dead letter. A failure affects only its own message.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from trunkline.bus.handlers import Call
from trunkline.bus.lifecycle import at_work
from trunkline.bus.requester import expects_ack
from trunkline.codec import MSGPACK, RAW
from trunkline.delivery.dead_letters import Cause, describe
from trunkline.delivery.eager import Sleeper
from trunkline.delivery.fates import Account
from trunkline.delivery.stream import Stream
from trunkline.errors import Closed, HandlerTimeout, PayloadError, Refused, Reject
from trunkline.hooks.hook import HookChain
from trunkline.message import Message, MessageType
from trunkline.message_log import about
from trunkline.topic import is_wild

log = logging.getLogger("trunkline.handlers")

REQUEST: Final = MessageType.REQUEST
RESPONSE: Final = MessageType.RESPONSE
_CAUSES = {Reject: Cause.REJECTED, HandlerTimeout: Cause.HANDLER_TIMEOUT}


class Surroundings(Protocol):
    """The interface of the bus for a dispatcher."""

    hooks: HookChain
    max_message_bytes: int
    gate: asyncio.Event | None

    def forget(self, handler: Handler) -> None: ...

    @property
    def handled(self) -> Callable[[Message, bool], None]: ...

    @property
    def listeners(self) -> list[Callable[[Message, bool], None]]: ...

    @property
    def respond(self) -> Callable[[Message, MessageType, object], Awaitable[object] | None]: ...

    @property
    def respond_error(self) -> Callable[[Message, BaseException], Awaitable[str]]: ...


class Handler:
    """A function that handles the messages of a subscription. `concurrency` messages are handled at once; 1 keeps their
    order."""

    def __init__(
        self,
        bus: Surroundings,
        stream: Stream,
        call: Call,
        *,
        concurrency: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        self._bus = bus
        self._hooks = bus.hooks
        self._stream = stream
        self._inbox = stream.inbox
        self._custody = stream.custody
        self._call = call
        self._timeout_s = timeout_s
        self._wild = is_wild(stream.pattern)
        self._bare = concurrency == 1 and timeout_s is None and not bus.hooks.opens and not bus.hooks.surrounds
        """Whether messages are handled one at a time, and the call needs no time limit and no hooks."""
        self._current: Message | None = None
        """The message that `_handle_plain` is handling."""
        self._loop = asyncio.get_running_loop()
        self._workers = [
            asyncio.create_task(self._work(), name=f"{stream.name} worker {number}")
            for number in range(1, concurrency + 1)
        ]

    @property
    def name(self) -> str:
        return self._stream.name

    @property
    def pattern(self) -> str:
        return self._stream.pattern

    @property
    def durable(self) -> bool:
        return self._stream.durable

    def account(self) -> Account:
        return self._stream.account()

    def unfinished(self) -> list[Message]:
        return self._stream.unfinished()

    def stop(self) -> None:
        """Accept no new messages; continue with the current ones."""
        self._stream.stop()

    async def quiet(self) -> None:
        """Return when all messages that have arrived so far are handled or dead."""
        await self._stream.quiet()

    @property
    def busy(self) -> bool:
        return self._stream.busy

    async def aclose(self) -> None:
        """Stop at once. Messages that are being handled are interrupted; they and waiting messages get their fate."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._stream.aclose()
        self._bus.forget(self)

    async def _work(self) -> None:
        at_work.set(True)
        stream, bus = self._stream, self._bus
        message: Message | None = None
        while True:
            if bus.gate is not None:
                await bus.gate.wait()
                continue
            try:
                if self._is_plain():
                    await self._handle_plain()
                    continue
                # Inlined `recv`, to avoid a coroutine for each message.
                message = stream.take()
                if message is not None:
                    await self._handle(message)
            except asyncio.CancelledError:
                if (taken := message or self._current) is not None:
                    self._custody.give_back(taken)
                raise
            except Exception as error:
                # Not an error of the function, but of the code around it. One message must not end the handler.
                if (taken := message or self._current) is None:
                    raise
                log.exception("%s: an unexpected error while handling %s", self.name, taken.id, extra=about(taken))
                self._custody.fail(taken, error)
                self._current = None
            if message is not None:
                message = None
            elif not await stream.more(eager=True):
                return

    def _is_plain(self) -> bool:
        """Whether `_handle_plain` does everything that the inbox and its books need."""
        inbox, bus = self._inbox, self._bus
        if not self._bare or inbox.needs_pull or inbox.closed or inbox.books.exact:
            return False
        return bus.gate is None and not bus.listeners

    async def _handle_plain(self) -> None:
        """`take`, `_handle` and `more`, inlined for plain messages.

        Returns when a message or the inbox needs the general path. Messages delivered without a pause are recorded as
        one range, unless a ledger records each message.
        """
        bus, inbox, custody, call, wild = self._bus, self._inbox, self._custody, self._call, self._wild
        queue, books, held, listeners = inbox.queue, inbox.books, custody.leases.held, bus.listeners
        run, takes_bytes, read, ledger = call.run, call.takes_bytes, call.read_msgpack, inbox.ledger
        told = ledger is not None and ledger.hears_of_deliveries
        begun = first = last = count = 0
        try:
            while (
                not (inbox.needs_pull or inbox.closed or books.exact or listeners)
                and inbox.ledger is ledger
                and bus.gate is None
            ):
                if not queue and (inbox.room or not inbox.open()):
                    if begun:
                        self._record(begun, first, last, count)
                        begun = 0
                    self._current = None
                    sleeper = inbox.fall_asleep(Sleeper(loop=self._loop))
                    try:
                        await sleeper
                    except asyncio.CancelledError:
                        inbox.disturbed(sleeper)
                        raise
                    continue
                self._current = message = queue.popleft()
                seq = message.seq
                if not begun and not told:
                    begun = first = last = seq
                    count = 0
                    books.running.append(begun)
                inbox.held += 1
                held[seq] = (message, math.inf)
                if len(queue) <= inbox.refill_at and inbox.refill is not None:
                    inbox.refill()
                try:
                    if takes_bytes and message.content_type == RAW and not message.encoding:
                        result = await run(message.payload)
                    else:
                        try:
                            if read is not None and message.content_type == MSGPACK and not message.encoding:
                                arguments = read(message.payload)
                            else:
                                arguments = call.arguments(message, bus.max_message_bytes)
                        except PayloadError as error:
                            await self._failed(message, error, Cause.INVALID_PAYLOAD)
                            continue
                        result = await run(*arguments)
                    if message.type is REQUEST and (result is not None or not wild):
                        # As `_answer`.
                        try:
                            if (waiting := bus.respond(message, RESPONSE, result)) is not None:
                                await waiting
                        except (Refused, Closed) as error:
                            self._unsent(message, error)
                except BaseException as error:
                    await self._went_wrong(message, error)
                    continue
                if held.pop(seq, None) is None:
                    # The subscriber has left in the meantime, and the message already has another fate.
                    continue
                inbox.held -= 1
                if custody.attempts:
                    custody.forget(seq)
                if told:
                    inbox.count_delivered(message)
                    continue
                books.delivered += 1
                count += 1
                if seq > last:
                    last = seq
                elif seq < first:
                    first = seq
                if books.rows:
                    books.cut(seq, seq)
        finally:
            if begun:
                self._record(begun, first, last, count)

    def _record(self, begun: int, first: int, last: int, count: int) -> None:
        """Record the messages that `_handle_plain` delivered without a pause."""
        inbox = self._inbox
        inbox.books.running.remove(begun)
        if count:
            inbox.books.covered += count
            inbox.books.cover(first, last, inbox.time_ns())
        if inbox.idle is not None:
            inbox.check_idle()

    async def _handle(self, message: Message) -> None:
        self._custody.working.add(message.seq)
        try:
            # Only the function gets the opened message. In custody and as a dead letter, the message stays as it was
            # received.
            opened = self._hooks.open(message) if self._hooks.opens else message
            arguments = self._call.arguments(opened, self._bus.max_message_bytes)
        except PayloadError as error:
            # Only for decoding the arguments: a payload error raised by the function itself is a failure of the
            # function.
            await self._failed(message, error, Cause.INVALID_PAYLOAD)
            return
        try:
            guarded = self._timeout_s is not None or self._hooks.surrounds
            result = await (self._run(message, arguments) if guarded else self._call.run(*arguments))
            # None from a handler with a wildcard pattern (such as a monitor on ">") is not an answer.
            if message.type is REQUEST and (result is not None or not self._wild):
                await self._answer(message, RESPONSE, result)
        except BaseException as error:
            await self._went_wrong(message, error)
        else:
            self._custody.ack(message)
            self._bus.handled(message, True)
            if expects_ack(message):
                await self._answer(message, MessageType.ACK, b"")

    async def _answer(self, message: Message, type: MessageType, value: object) -> None:
        """Send an answer. If it is rejected, the message still counts as handled: handling it again would not help."""
        try:
            waiting = self._bus.respond(message, type, value)
            if waiting is not None:
                await waiting
        except (Refused, Closed) as error:
            self._unsent(message, error)

    def _unsent(self, message: Message, error: Exception) -> None:
        log.warning(
            "%s handled %s, but its answer could not be sent: %s",
            self.name,
            message.id,
            describe(error),
            extra=about(message),
        )

    async def _run(self, message: Message, arguments: list[Any]) -> Any:
        with self._hooks.handling(message, self.name, self.pattern):
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    return await self._call.run(*arguments)
            except TimeoutError as error:
                if self._timeout_s is None or not limit.expired():
                    raise
                raise HandlerTimeout(self.name, self._timeout_s) from error

    async def _went_wrong(self, message: Message, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise error
            # This worker was not cancelled: something that the function waited for was.
        elif not isinstance(error, Exception):
            raise error
        await self._failed(message, error, _CAUSES.get(type(error), Cause.HANDLER_FAILED))

    async def _failed(self, message: Message, error: BaseException, cause: Cause) -> None:
        pause_s = self._custody.fail(message, error, cause)
        self._bus.handled(message, False)
        if pause_s is not None:
            self._hooks.retried(message, self.name, self.pattern, error, pause_s)
            log.info(
                "%s failed on %s, next attempt in %.3g s: %s",
                self.name,
                message.id,
                pause_s,
                describe(error),
                extra=about(message),
            )
        elif message.type is MessageType.REQUEST and not self._wild:
            try:
                await self._bus.respond_error(message, error)
            except (Refused, Closed) as refusal:
                self._unsent(message, refusal)
