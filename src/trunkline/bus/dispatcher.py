"""The dispatcher: takes messages from a stream, runs the handler on them, and sees to what follows.

Well handled is acknowledged, and answered if it was a request. Failed is tried again as the subscription says, and in
the end a dead letter. A failure concerns its message alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from trunkline.bus.handlers import Call
from trunkline.bus.lifecycle import at_work
from trunkline.bus.requester import expects_ack
from trunkline.delivery.dead_letters import Cause, describe
from trunkline.delivery.fates import Account
from trunkline.delivery.stream import Stream
from trunkline.errors import Closed, HandlerTimeout, PayloadError, Refused, Reject
from trunkline.hooks.hook import HookChain
from trunkline.message import Message, MessageType
from trunkline.topic import is_wild

log = logging.getLogger("trunkline.handlers")

_CAUSES = {Reject: Cause.REJECTED, HandlerTimeout: Cause.HANDLER_TIMEOUT}


class Surroundings(Protocol):
    """What a dispatcher needs of its bus."""

    hooks: HookChain
    max_message_bytes: int
    gate: asyncio.Event | None

    def forget(self, handler: Handler) -> None: ...

    @property
    def handled(self) -> Callable[[Message, bool], None]: ...

    @property
    def respond(self) -> Callable[[Message, MessageType, object], Awaitable[str]]: ...

    @property
    def respond_error(self) -> Callable[[Message, BaseException], Awaitable[str]]: ...


class Handler:
    """A function at work on a subscription. `concurrency` messages are handled at once; 1 keeps their order."""

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
        self._custody = stream.custody
        self._call = call
        self._timeout_s = timeout_s
        self._wild = is_wild(stream.pattern)
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
        """Take in nothing new; go on with what is there."""
        self._stream.stop()

    async def quiet(self) -> None:
        """Return when all that came so far is handled or dead."""
        await self._stream.quiet()

    @property
    def busy(self) -> bool:
        return self._stream.busy

    async def aclose(self) -> None:
        """Stop at once. What is being handled is interrupted and, like what waits, gets its fate."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._stream.aclose()
        self._bus.forget(self)

    async def _work(self) -> None:
        at_work.set(True)
        stream, bus = self._stream, self._bus
        while True:
            if bus.gate is not None:
                await bus.gate.wait()
                continue
            # As `recv`, without a coroutine of its own for each message.
            message = stream.take()
            if message is None:
                if await stream.more():
                    continue
                return
            try:
                await self._handle(message)
            except asyncio.CancelledError:
                self._custody.give_back(message)
                raise
            except Exception as error:
                # Not the function: what we do around it. One message must not end the handler.
                log.exception("%s: handling %s went wrong", self.name, message.id)
                self._custody.fail(message, error)

    async def _handle(self, message: Message) -> None:
        self._custody.working.add(message.seq)
        try:
            # Only what the function gets is opened: in custody, and as a dead letter, the message is as it came.
            opened = self._hooks.open(message) if self._hooks.opens else message
            arguments = self._call.arguments(opened, self._bus.max_message_bytes)
        except PayloadError as error:
            # Only here: a payload error that the function itself meets is its failure, not this message's.
            await self._failed(message, error, Cause.INVALID_PAYLOAD)
            return
        try:
            guarded = self._timeout_s is not None or self._hooks.surrounds
            result = await (self._run(message, arguments) if guarded else self._call.run(*arguments))
            # None from one that listens to many topics (a monitor on ">") is no answer.
            if message.type is MessageType.REQUEST and (result is not None or not self._wild):
                await self._send_answer(self._bus.respond(message, MessageType.RESPONSE, result), message)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # Nobody stops this worker: something that the function waited for was cancelled.
            await self._failed(message, error, Cause.HANDLER_FAILED)
        except Exception as error:
            await self._failed(message, error, _CAUSES.get(type(error), Cause.HANDLER_FAILED))
        else:
            self._custody.ack(message)
            self._bus.handled(message, True)
            if expects_ack(message):
                await self._send_answer(self._bus.respond(message, MessageType.ACK, b""), message)

    async def _send_answer(self, answer: Awaitable[str], message: Message) -> None:
        """Send an answer. If it is refused, the work is done all the same: doing it again would not help."""
        try:
            await answer
        except (Refused, Closed) as error:
            log.warning("%s handled %s, but its answer could not be sent: %s", self.name, message.id, describe(error))

    async def _run(self, message: Message, arguments: list[Any]) -> Any:
        with self._hooks.handling(message):
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    return await self._call.run(*arguments)
            except TimeoutError as error:
                if self._timeout_s is None or not limit.expired():
                    raise
                raise HandlerTimeout(self.name, self._timeout_s) from error

    async def _failed(self, message: Message, error: BaseException, cause: Cause) -> None:
        pause_s = self._custody.fail(message, error, cause)
        self._bus.handled(message, False)
        if pause_s is not None:
            log.info("%s failed on %s, next attempt in %.3g s: %s", self.name, message.id, pause_s, describe(error))
        elif message.type is MessageType.REQUEST and not self._wild:
            await self._send_answer(self._bus.respond_error(message, error), message)
