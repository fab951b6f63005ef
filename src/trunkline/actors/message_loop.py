"""The message loop of an actor: it handles one message after the other, each with its answer and its fate.

An idle actor has no task: a future in its mailbox starts one when a message arrives. The actors that were busy last
keep their tasks while they are idle: such an actor handles the next message at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from trunkline.actors.actor import ActorHandler, Plan
from trunkline.actors.message_fates import REQUEST, CellState, MessageFates
from trunkline.actors.process import UnreadableThere
from trunkline.actors.ref import Ref
from trunkline.actors.settings import Keep
from trunkline.actors.timers import Timer
from trunkline.bus.requester import expects_ack
from trunkline.codec import RAW
from trunkline.delivery.dead_letters import Cause, describe
from trunkline.delivery.eager import Sleeper
from trunkline.delivery.fates import Fate
from trunkline.delivery.plain_run import RunReader
from trunkline.errors import HandlerTimeout, InvalidPayload, PayloadError, Reject
from trunkline.hooks.log import TRACE
from trunkline.message import Message, MessageType

if TYPE_CHECKING:
    from trunkline.actors.context import Context
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")

TURN: Final = 500
"""The maximum number of messages handled in one iteration of the event loop, before other tasks run."""
RESPONSE: Final = MessageType.RESPONSE
PUBLISH: Final = MessageType.PUBLISH
RUNNING: Final = CellState.RUNNING
"""A module constant: on Python 3.11, looking it up in the class takes 860 instructions, and a message takes 14,000."""

ACTING: Final[ContextVar[object]] = ContextVar("the system whose actor handles a message", default=None)
"""Distinguishes messages that actors of a system send from messages that come from outside."""


class MessageLoop(MessageFates):
    """The part of a cell that handles messages."""

    __slots__ = ("context", "last_at", "outside", "plan", "timed")

    def __init__(self, system: ActorSystem, ref: Ref, plan: Plan, keep: Keep) -> None:
        super().__init__(system, ref, keep)
        self.plan = plan
        """Its current handlers: `become` changes them."""
        self.context: Context | None = None
        self.outside: asyncio.Future[Any] | None = None
        """A handler that runs in a thread or in another process. It cannot be interrupted."""
        self.timed: dict[str, Timer] | None = None
        """The timers of messages that are in the mailbox, by message id."""
        self.last_at: float | None = None
        """When the last message was handled; None if there is no receive timeout."""

    # The loop

    def _rest(self) -> None:
        """Record what was handled, and save the state. Called when there is no message to handle."""
        if self.context is not None:
            self.context.message = None
        if self._since:
            self._write_down()
        if self.memory is not None:
            self.memory.save_soon()

    async def _handle_all(self) -> None:
        """Handle all waiting messages, and further ones as long as the actor may keep its task."""
        inbox, idle = self.inbox, self.system.idle
        queue = inbox.queue
        handler = self._raw_handler()
        count = 0
        while not self._ending and self.state is RUNNING:
            if handler is not None and count < TURN:
                done = 0
                if not queue and not inbox.room and (reader := inbox.read_run(TURN - count, RAW)) is not None:
                    done = await self._handle_run(handler, reader)
                elif (queue or (not inbox.room and inbox.open())) and queue[0].type is PUBLISH:
                    done = await self._handle_raw(handler)
                count += done
                if done and not self._breaking:
                    continue
            if self._breaking:
                self._breaking = self._ending
                handler = self._raw_handler()
                continue
            message = inbox.pull() if count < TURN else None
            if message is not None:
                inbox.held += 1
                self._current = message
                self._handled = False
                if await self._handle(message):
                    log.log(TRACE, "%s has handled %s from %s", self.ref, message.id, message.sender)
                    self._delivered(message)
                    if self._roster.listeners:
                        self._roster.handled(message, True)
                self._current = None
                inbox.held -= 1
                count += 1
            elif count >= TURN:
                count = 0
                await asyncio.sleep(0)
            else:
                self._rest()
                sleeper = Sleeper(loop=self.system.loop)
                idle.enter(self)
                inbox.fall_asleep(sleeper)
                try:
                    await sleeper
                except asyncio.CancelledError:
                    inbox.disturbed(sleeper)
                    raise
                finally:
                    kept = idle.leave(self)
                if not kept:
                    return
                handler = self._raw_handler()
                count = 0

    async def _handle_raw(self, handler: Callable[..., Any]) -> int:
        """Pass raw bytes to the only handler, message by message: `_handle` and `_delivered`, inlined.

        Stops after `TURN` messages, or at the first that needs more. Returns the number of messages, for `TURN`.
        """
        inbox, context, actor = self.inbox, self.context, self.actor
        queue = inbox.queue
        assert context is not None
        done, last = 0, 0
        first = queue[0].seq
        # One message is held at any time. An interrupted one is not handled.
        inbox.held += 1
        self._handled = False
        try:
            while queue:
                if inbox.needs_pull and (inbox.marked or inbox.elsewhere):
                    break
                message = queue.popleft()
                if message.content_type != RAW or message.type is not PUBLISH or message.encoding:
                    queue.appendleft(message)
                    break
                if inbox.needs_pull:
                    # A publisher waits for room.
                    inbox.make_room()
                seq = message.seq
                if seq < last:
                    # The message returned after later ones: a range must not end before it begins.
                    self._count(first, last, done)
                    done, first = 0, seq
                self._current = context.message = message
                try:
                    await handler(actor, message.payload)
                except Reject as error:
                    self._count(first, last, done)
                    done, first = 0, seq + 1
                    await self._refused(message, error, Cause.REJECTED)
                    continue
                if self._breaking:
                    if self._stashing:
                        self._put_aside(message)
                    else:
                        last = seq
                        done += 1
                    break
                last = seq
                done += 1
                if done >= TURN or self.state is not RUNNING:
                    break
        finally:
            self._count(first, last, done)
        # Not after an error: the message on which the actor failed is still held.
        self._current = None
        inbox.held -= 1
        return done

    async def _handle_run(self, handler: Callable[..., Any], reader: RunReader) -> int:
        """Like `_handle_raw`, for the messages of a run. They are not built: the handler takes their payloads."""
        inbox, context, actor = self.inbox, self.context, self.actor
        assert context is not None
        self._reader = context.reader = reader
        counted = 0
        # One message is held at any time. An interrupted one is not handled.
        inbox.held += 1
        self._handled = False
        try:
            for payload in reader.payloads:
                if inbox.parked:
                    inbox.make_room()
                try:
                    await handler(actor, payload)
                except Reject as error:
                    self._count_run(reader, counted, reader.taken - 1)
                    counted = reader.taken
                    await self._refused(reader.current, error, Cause.REJECTED)
                if self._breaking or self.state is not RUNNING:
                    break
                if inbox.needs_pull and (inbox.marked or inbox.elsewhere):
                    break
        except BaseException:
            # The message on which the actor failed is still held.
            self._current = reader.current
            self._count_run(reader, counted, max(counted, reader.taken - 1))
            raise
        finally:
            self._reader = context.reader = None
            inbox.stop_reading()
        taken = reader.taken
        if self._stashing and counted < taken:
            self._put_aside(reader.current)
            self._count_run(reader, counted, taken - 1)
        else:
            self._count_run(reader, counted, taken)
        inbox.held -= 1
        return taken

    def _count_run(self, reader: RunReader, start: int, end: int) -> None:
        self._count(reader.first + start, reader.first + end - 1, end - start)

    def _raw_handler(self) -> Callable[..., Any] | None:
        """The handler for `_handle_raw`, or None.

        It must be the only one and take raw bytes, and the call must need no hooks."""
        handler = self.plan.default
        plain = not self.plan.by_schema and self.keep.timeout_s is None and not self.system.bus.hooks.opens
        plain = plain and not log.isEnabledFor(TRACE) and not self.system.bus.hooks.surrounds
        plain = plain and not self._roster.listeners and not self.timed and self.last_at is None
        if handler is None or not plain or self.memory is not None or handler.in_thread or self.keep.process:
            return None
        return handler.function if handler.wants_payload in (bytes, Any) and not self.inbox.books.exact else None

    async def _handle(self, message: Message) -> bool:
        """Run the handler; its errors are raised. False if the message was stashed, or has another fate without a
        failure.
        """
        system = self.system
        if self.timed and (timer := self.timed.pop(message.id, None)) is not None and timer.cancelled:
            self._write_down()
            self.inbox.settle(message, Fate.FILTERED, "its timer was cancelled")
            return False
        handler = self.plan.choose(message)
        try:
            if handler is None:
                raise InvalidPayload(self.plan.missing(message))
            opened = system.bus.opened(message) if system.bus.hooks.opens else message
            limit = system.bus.settings.max_message_bytes
            argument = opened if handler.wants_message else opened.decode(handler.wants_payload, max_bytes=limit)
        except PayloadError as error:
            await self._refused(message, error, Cause.INVALID_PAYLOAD)
            return False
        if self.context is not None:
            self.context.message = message
        try:
            if system.bus.hooks.surrounds:
                with system.bus.hooks.handling(message, self.inbox.name, self.inbox.pattern):
                    result = await self._call(handler, argument)
            else:
                result = await self._call(handler, argument)
        except Reject as error:
            # The actor rejected the message: that is not a failure.
            if isinstance(error, UnreadableThere):
                await self._refused(message, InvalidPayload(str(error)), Cause.INVALID_PAYLOAD)
            else:
                await self._refused(message, error, Cause.REJECTED)
            return False
        finally:
            if self.context is not None:
                self.context.message = None
            if self.last_at is not None:
                self.last_at = system.loop.time()
        if self._stashing:
            self._put_aside(message)
            return False
        self._attempts = 0
        if self.memory is not None:
            # Before the answer: a requester that gets the answer and then ends the actor must find the state that the
            # answer refers to.
            self.memory.keep(self.actor.snapshot())  # type: ignore[union-attr]  # it has one if there is `memory`
        self._handled = True
        if message.type is REQUEST:
            await self._send_answer(message, system.bus.answer_now, RESPONSE, result)
        elif expects_ack(message):
            await self._send_answer(message, system.bus.acknowledge)
        return True

    # The handler

    def _call(self, handler: ActorHandler, argument: object) -> Any:
        if handler.in_thread:
            run = contextvars.copy_context().run
            threads = self.system.threads
            call = self._outside(self.system.loop.run_in_executor(threads, run, handler.function, self.actor, argument))
        elif self.keep.process:
            call = self._outside(self.system.loop.create_task(handler.function(self.actor, argument)))
        else:
            call = handler.function(self.actor, argument)
        return call if self.keep.timeout_s is None else self._in_time(call, self.keep.timeout_s)

    async def _outside(self, work: asyncio.Future[Any]) -> Any:
        """Wait for work that cannot be interrupted.

        The wait itself can be cancelled: the work continues, and stays in `outside`.
        """
        self.outside = work
        try:
            return await asyncio.shield(work)
        finally:
            if work.done():
                self.outside = None
            else:
                work.add_done_callback(self._is_back)

    def _is_back(self, work: asyncio.Future[Any]) -> None:
        """Called when a handler has ended after its wait was cancelled. Its message already has a fate."""
        if self.outside is work:
            self.outside = None
        if not work.cancelled() and (error := work.exception()) is not None:
            log.warning("%s: a handler that ran past its time limit has failed: %s", self.ref, describe(error))

    async def _in_time(self, call: Any, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await call
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise HandlerTimeout(self.ref.address, timeout_s) from error
