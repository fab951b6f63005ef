"""A cell: the place of one actor in its system. Mailbox and address last; incarnations come and go in it.

An idle actor has no task: a future in its mailbox starts one when something comes. The actors that were busy last keep
their tasks while they are idle: such an actor handles the next message at once.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from trunkline.actors.actor import Actor, ActorHandler, Plan
from trunkline.actors.context import Context
from trunkline.actors.process import InProcess
from trunkline.actors.ref import Ref
from trunkline.actors.settings import Failed, Keep
from trunkline.actors.state import ActorState
from trunkline.actors.supervision import Supervisor
from trunkline.bus.requester import expects_ack
from trunkline.codec import RAW
from trunkline.delivery.dead_letters import Cause, describe
from trunkline.delivery.eager import Sleeper
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import Closed, HandlerTimeout, InvalidPayload, InvalidTopic, PayloadError, Refused, Reject
from trunkline.hooks.log import TRACE
from trunkline.message import Message, MessageType, Priority

if TYPE_CHECKING:
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")

TURN: Final = 500
"""So many messages are handled in one turn of the event loop: then it is the turn of others."""
MAX_IDLE: Final = 1000
"""So many idle actors of a system keep their tasks: 2 KB each."""
REQUEST: Final = MessageType.REQUEST
RESPONSE: Final = MessageType.RESPONSE
PUBLISH: Final = MessageType.PUBLISH


class CellState(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


class IdleActors:
    """Those that keep their tasks: the last `MAX_IDLE` that were busy."""

    def __init__(self) -> None:
        self._cells: dict[Cell, None] = {}

    def enter(self, cell: Cell) -> None:
        self._cells[cell] = None
        if len(self._cells) > MAX_IDLE:
            oldest = next(iter(self._cells))
            del self._cells[oldest]
            oldest.inbox.wake()

    def leave(self, cell: Cell) -> bool:
        """False if it was let go meanwhile."""
        return self._cells.pop(cell, self) is None


class Cell:
    __slots__ = (
        "_armed",
        "_attempts",
        "_ending",
        "_first",
        "_handled",
        "_last",
        "_life",
        "_roster",
        "_since",
        "_task",
        "actor",
        "context",
        "current",
        "family",
        "handled",
        "inbox",
        "keep",
        "make",
        "memory",
        "name",
        "parent",
        "plan",
        "ref",
        "restarts",
        "state",
        "system",
        "watchers",
    )

    def __init__(
        self,
        system: ActorSystem,
        name: str,
        plan: Plan,
        make: Callable[[], Actor],
        keep: Keep,
        parent: Cell | None,
    ) -> None:
        self.system = system
        self.name = name
        self.plan = plan
        self.make = make
        self.keep = keep
        self.parent = parent
        self._roster = system.bus.broker.served
        self.ref = Ref(system.bus, system.address(name))
        self.state = CellState.STARTING
        self.actor: Actor | None = None
        self.context: Context | None = None
        self.current: Message | None = None
        """The message that is being handled, or whose answer is being sent."""
        self.family: Supervisor | None = None
        """Its children, if it has any."""
        self.watchers: set[str] | None = None
        self.memory: ActorState | None = None
        """What it remembers, if it does."""
        self.restarts = 0
        self.handled = 0
        self.inbox: Inbox
        self._task: asyncio.Task[None] | None = None
        self._armed = False
        self._handled = False
        """Whether the handler is done with `current`: only its answer may be missing."""
        self._ending = False
        self._life = 0
        """Counts incarnations, and their ends."""
        self._attempts = 0
        """How often the message at the front was tried."""
        # What was handled since the last time it was written down: a range of numbers.
        self._first = 0
        self._last = 0
        self._since = 0

    def open(self) -> None:
        """Have a mailbox."""
        self.inbox = self.system.bus.broker.served.enroll(self.ref.address, self.ref.topic, self.keep.capacity)
        if self.keep.overflow is None:
            self.inbox.full = self._overflow
        else:
            self.inbox.full = lambda message: self._lost(message, self.keep.overflow or Overflow.BLOCK)
        self.inbox.told = True

    def _overflow(self, message: Message) -> Overflow:
        """Who sends what matters waits; the rest is told, or not even that."""
        if message.priority >= Priority.HIGH:
            return Overflow.BLOCK
        return self._lost(message, Overflow.REJECT if message.priority >= Priority.NORMAL else Overflow.DROP_NEWEST)

    def _lost(self, message: Message, policy: Overflow) -> Overflow:
        if policy in (Overflow.REJECT, Overflow.DROP_NEWEST):
            self.system.bury(
                message, self.ref.address, Cause.MAILBOX_FULL, f"its mailbox is full ({self.inbox.capacity})"
            )
        return policy

    # Incarnations

    async def begin(self) -> None:
        """A new incarnation; it works from now on. Whatever the actor raises passes through."""
        self._ending = False
        self.state = CellState.STARTING
        self._life += 1
        life = self._life
        actor = self.actor = self.make()
        context = self.context = actor.context = Context(self)
        try:
            if self.plan.state is not None:
                await self._remember(actor)
            if "starting" in self.plan.hooks:
                await actor.starting()
        except BaseException:
            context.end()
            raise
        if life == self._life:
            self.state = CellState.RUNNING
            self._listen()
        else:
            # Somebody has ended it while it started: another incarnation follows, or none.
            context.end()
            if isinstance(actor, InProcess):
                await actor.release()

    async def _remember(self, actor: Any) -> None:
        if self.memory is None:
            self.memory = ActorState(self.system.bus, self.ref.address)
        kept = await self.memory.recall()
        if kept is not None:
            actor.restore(kept.decode(self.plan.state))

    def _listen(self) -> None:
        """Work, or be woken when there is something to do."""
        if self.inbox.depth:
            self._go()
        elif not self._armed:
            self._armed = True
            sleeper: asyncio.Future[None] = self.system.loop.create_future()
            sleeper.add_done_callback(self._woken)
            self.inbox.check_idle()
            self.inbox.sleepers.append(sleeper)

    def _woken(self, _: object) -> None:
        self._armed = False
        if self.state is CellState.RUNNING and self._task is None:
            self._listen()

    def _go(self) -> None:
        if self._task is None:
            self._task = self.system.loop.create_task(self._work(), name=self.ref.address)

    async def suspend(self) -> None:
        """End the incarnation where it is. What it was handling goes first again."""
        self._life += 1
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.context is not None:
            self.context.end()
        actor, self.actor = self.actor, None
        if isinstance(actor, InProcess):
            await actor.release()

    def stop_soon(self) -> None:
        """The actor wants to end: after what it is handling."""
        self._ending = True

    # Messages

    async def _work(self) -> None:
        failure: BaseException | None = None
        message: Message | None = None
        try:
            await self._handle_all()
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                self._give_back()
                raise
            # Nobody stops it: something that the actor waited for was cancelled.
            failure, message, self.current = error, self.current, None
        except Exception as error:
            failure, message, self.current = error, self.current, None
        finally:
            self._rest()
            if self._task is asyncio.current_task():
                self._task = None
        if failure is not None:
            self.system.crashed(self, failure, message)
        elif self._ending:
            self.system.ended(self)
        elif self.state is CellState.RUNNING:
            self._listen()

    def _rest(self) -> None:
        """There is nothing to handle."""
        if self.context is not None:
            self.context.message = None
        if self._since:
            self._write_down()
        if self.memory is not None:
            self.memory.save_soon()

    async def _handle_all(self) -> None:
        """All that is there, and what comes as long as the actor may keep its task."""
        inbox, idle = self.inbox, self.system.idle
        queue = inbox.queue
        handler = self._raw_handler()
        count = 0
        while not self._ending and self.state is CellState.RUNNING:
            if handler is not None and queue and queue[0].type is PUBLISH:
                count += await self._handle_raw(handler)
            message = inbox.pull() if count < TURN else None
            if message is not None:
                inbox.held += 1
                self.current = message
                self._handled = False
                if await self._handle(message):
                    log.log(TRACE, "%s has handled %s from %s", self.ref, message.id, message.sender)
                    self._delivered(message)
                    if self._roster.listeners:
                        self._roster.handled(message, True)
                self.current = None
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
        """Bytes for the one handler there is, one after the other: what `_handle` and `_delivered` do, without calls.

        How many; up to a turn, or until one comes that needs more.
        """
        inbox, context, actor = self.inbox, self.context, self.actor
        queue = inbox.queue
        assert context is not None
        done, last = 0, 0
        first = queue[0].seq
        # One is held at any moment.
        inbox.held += 1
        try:
            while queue:
                if inbox.needs_pull and (inbox.marked or inbox.elsewhere):
                    break
                message = queue.popleft()
                if message.content_type != RAW or message.type is not PUBLISH or message.encoding:
                    queue.appendleft(message)
                    break
                if inbox.needs_pull:
                    # Somebody waits to be let in.
                    inbox.make_room()
                self.current = context.message = message
                try:
                    await handler(actor, message.payload)
                except Reject as error:
                    self._count(first, last, done)
                    done, first = 0, message.seq + 1
                    await self._refused(message, error, Cause.REJECTED)
                    continue
                last = message.seq
                done += 1
                if done >= TURN or self._ending or self.state is not CellState.RUNNING:
                    break
        finally:
            self._count(first, last, done)
        # Not after an error: what it failed on is still held.
        self.current = None
        inbox.held -= 1
        return done

    def _count(self, first: int, last: int, done: int) -> None:
        if done:
            self.inbox.books.delivered += done
            self.handled += done
            self._attempts = 0
            if not self._since:
                self._first = first
            self._last = last
            self._since += done

    def _raw_handler(self) -> Callable[..., Any] | None:
        """The handler, if there is one only, which takes bytes as they are, and nothing has to be done around it."""
        handler = self.plan.default
        plain = not self.plan.by_name and self.keep.timeout_s is None and not self.system.bus.hooks.opens
        plain = plain and not log.isEnabledFor(TRACE) and not self.system.bus.hooks.surrounds
        plain = plain and not self._roster.listeners
        if handler is None or not plain or self.memory is not None or handler.in_thread:
            return None
        return handler.function if handler.wants_payload in (bytes, Any) else None

    async def _handle(self, message: Message) -> bool:
        """Run the handler; raises what it raises. False if the message is a dead letter, by no fault of the actor."""
        system = self.system
        handler = self.plan.choose(message)
        try:
            if handler is None:
                what = message.schema or "plain values"
                raise InvalidPayload(
                    f"{self.plan.name} has no handler for {what}: write `receive`, or one with @handles"
                )
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
                with system.bus.hooks.handling(message):
                    result = await self._call(handler, argument)
            else:
                result = await self._call(handler, argument)
        except Reject as error:
            # Said by the actor itself: no failure of its own.
            await self._refused(message, error, Cause.REJECTED)
            return False
        finally:
            if self.context is not None:
                self.context.message = None
        self._attempts = 0
        if self.memory is not None:
            # Before the answer: whoever has it may end the actor, and finds the state that the answer speaks of.
            self.memory.keep(self.actor.snapshot())  # type: ignore[union-attr]  # it has one, or there were no memory
        self._handled = True
        if message.type is REQUEST:
            await self._send_answer(message, system.bus.answer_now, RESPONSE, result)
        elif expects_ack(message):
            await self._send_answer(message, system.bus.acknowledge)
        return True

    def _call(self, handler: ActorHandler, argument: object) -> Any:
        if handler.in_thread:
            call = asyncio.to_thread(handler.function, self.actor, argument)
        else:
            call = handler.function(self.actor, argument)
        return call if self.keep.timeout_s is None else self._in_time(call, self.keep.timeout_s)

    async def _in_time(self, call: Any, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await call
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise HandlerTimeout(self.ref.address, timeout_s) from error

    async def _send_answer(
        self, message: Message, answer: Callable[..., Awaitable[object] | None], *values: object
    ) -> None:
        try:
            if (waiting := answer(message, *values)) is not None:
                await waiting
        except (Refused, Closed, InvalidTopic) as error:
            log.warning("%s handled %s, but its answer could not be sent: %s", self.ref, message.id, describe(error))

    # Fates

    def _delivered(self, message: Message) -> None:
        self._count(message.seq, message.seq, 1)

    def _write_down(self) -> None:
        if self._since:
            inbox = self.inbox
            now_ns = inbox.time_ns()
            inbox.books.cover(self._first, self._last, now_ns)
            if inbox.ledger is not None:
                inbox.ledger.delivered(inbox, self._first, self._last, self._since, now_ns)
            self._since = 0
            inbox.check_idle()

    async def _refused(self, message: Message, error: Exception, cause: Cause) -> None:
        """A dead letter that is no failure of the actor."""
        self._attempts = 0
        self._write_down()
        self._roster.handled(message, False)
        self.inbox.settle(message, Fate.DEAD, describe(error))
        self.system.bury(message, self.ref.address, cause, describe(error), error)
        if message.type is REQUEST:
            await self._send_answer(message, self.system.bus.respond_error, error)

    def _give_back(self) -> None:
        """It was interrupted: the next incarnation, or nobody, handles what it was at, unless it was handled."""
        message, self.current = self.current, None
        if message is not None:
            self.inbox.held -= 1
            if self._handled:
                self._delivered(message)
            else:
                self.inbox.return_to_front(message)

    def failed_on(self, message: Message, error: BaseException) -> None:
        """What becomes of the message that an incarnation failed over, as was said at spawn."""
        self.inbox.held -= 1
        self._roster.handled(message, False)
        self._attempts += 1
        if self.keep.failed is Failed.RETRY and self._attempts < self.keep.attempts:
            self.inbox.return_to_front(message)
            return
        self._attempts = 0
        dropped = self.keep.failed is Failed.DROP
        # A dead letter tells those who wait for an acknowledgement by itself.
        if message.type is REQUEST or (dropped and expects_ack(message)):
            self.system.background(self.system.bus.respond_error(message, error))
        if dropped:
            self.inbox.settle(message, Fate.DROPPED, f"its actor failed: {describe(error)}")
            return
        self.inbox.settle(message, Fate.DEAD, describe(error))
        cause = Cause.HANDLER_TIMEOUT if isinstance(error, HandlerTimeout) else Cause.HANDLER_FAILED
        self.system.bury(message, self.ref.address, cause, describe(error), error)

    @property
    def is_starting(self) -> bool:
        return self.state is CellState.STARTING

    @property
    def load(self) -> int:
        """How much it has to do."""
        return self.inbox.in_flight

    @property
    def busy(self) -> bool:
        return bool(self.inbox.in_flight) or self.current is not None
