"""A cell: the place of one actor in its system. Its mailbox and address outlast each incarnation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trunkline.actors.actor import PLAIN, Actor, Plan, schema_of
from trunkline.actors.actor_spec import ActorSpec
from trunkline.actors.context import Context
from trunkline.actors.mailbox import Mailbox
from trunkline.actors.message_fates import CellState
from trunkline.actors.message_loop import ACTING, MessageLoop
from trunkline.actors.process import InProcess
from trunkline.actors.ref import Ref, Way
from trunkline.actors.settings import Keep
from trunkline.actors.state import ActorState
from trunkline.actors.supervision import Supervisor
from trunkline.actors.timers import Timer
from trunkline.delivery.dead_letters import describe
from trunkline.delivery.subscriber import Overflow
from trunkline.message import Fields, Message

if TYPE_CHECKING:
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")


class Cell(MessageLoop):
    __slots__ = (
        "_armed",
        "_beginning",
        "_begun",
        "_life",
        "_mourned",
        "_task",
        "born_plan",
        "family",
        "make",
        "name",
        "parent",
        "restarts",
        "watchers",
        "watching",
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
        super().__init__(system, Ref(system.bus, system.address(name)), plan, keep)
        self.name = name
        self.make = make
        self.parent = parent
        self.family: Supervisor | None = None
        """Its children, if it has any."""
        self.watchers: set[str] | None = None
        """The names of actors of this system that are notified of its end."""
        self.watching: set[str] | None = None
        """The addresses of the actors that it watches."""
        self.restarts = 0
        self.born_plan = plan
        """The handlers of its class, without `become`."""
        self._task: asyncio.Task[None] | None = None
        self._armed = False
        self._life = 0
        """Incremented when an incarnation starts, and when it ends."""
        self._beginning = False
        """Whether an incarnation is starting."""
        self._begun: asyncio.Future[None] | None = None
        """Done when the incarnation has started, or failed to start. None if no task waits for that."""
        self._mourned = False
        """Whether the hook `failed` of the incarnation was called."""

    def open(self) -> None:
        """Create the mailbox."""
        keep = self.keep
        roster = self.system.bus.broker.served
        policy = Overflow.BLOCK if keep.overflow is None else keep.overflow
        self.inbox = inbox = roster.enroll(self.ref.address, self.ref.topic, keep.capacity, policy, Mailbox)
        inbox.belong_to(self, by_priority=keep.overflow is None)

    # Incarnations

    async def begin(self) -> None:
        """Start a new incarnation, which handles messages from now on. Errors of the actor are raised."""
        if self._beginning:
            await self._others_began()
            if self.state not in (CellState.STARTING, CellState.RESTARTING):
                return
        self._beginning = True
        self._ending = self._breaking = self._stashing = self._mourned = False
        self.last_at = None
        self.state = CellState.STARTING
        self._life += 1
        life = self._life
        plan = self.plan = self.born_plan
        context: Context | None = None
        try:
            actor = self.actor = self.make()
            context = self.context = actor.context = Context(self)
            if plan.state is not None:
                await self._remember(actor)
            if "starting" in plan.hooks:
                await actor.starting()
        except BaseException:
            if context is not None:
                context.end()
            raise
        finally:
            self._beginning = False
            if self._begun is not None:
                self._begun.set_result(None)
                self._begun = None
        if life != self._life:
            await self._end_of_start(actor)
            return
        self.state = CellState.RUNNING
        if self._ending:
            self.system.failures.ended(self)
        else:
            self._listen()

    async def _others_began(self) -> None:
        """Return when no incarnation is starting."""
        while self._beginning:
            if self._begun is None:
                self._begun = self.system.loop.create_future()
            await asyncio.wait([self._begun])

    async def _end_of_start(self, actor: Actor) -> None:
        """Handle an incarnation that was ended while it started. Another one may follow."""
        actor.context.end()
        if self.actor is not actor:
            await self._hook(actor.stopped())
        if isinstance(actor, InProcess):
            await actor.release()

    async def _remember(self, actor: Any) -> None:
        if self.memory is None:
            self.memory = ActorState(self.system.bus, self.ref.address)
        kept = await self.memory.recall()
        if kept is not None:
            actor.restore(kept.decode(self.plan.state))

    def _listen(self) -> None:
        """Handle messages, or wait to be woken if there are none."""
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

    async def _work(self) -> None:
        life = self._life
        failure: BaseException | None = None
        message: Message | None = None
        ACTING.set(self.system)
        try:
            await self._handle_all()
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                self._give_back()
                raise
            # The task itself was not cancelled: something that the actor awaited was cancelled.
            failure, message, self._current = error, self._current, None
        except GeneratorExit as error:
            if not self._is_stepping():
                raise
            failure, message, self._current = error, self._current, None
        except BaseException as error:
            failure, message, self._current = error, self._current, None
        finally:
            self._rest()
            if self._task is asyncio.current_task():
                self._task = None
        if failure is not None:
            if life == self._life:
                self.system.failures.crashed(self, failure, message)
            elif message is not None:
                # Its incarnation was already over: the failure affects only the message.
                log.error("%s failed while it was stopping: %s", self.ref, describe(failure), exc_info=failure)
                self.failed_on(message, failure)
            if isinstance(failure, (KeyboardInterrupt, SystemExit)):
                raise failure
        elif life == self._life:
            if self._ending:
                self.system.failures.ended(self)
            elif self.state is CellState.RUNNING:
                self._listen()

    def _is_stepping(self) -> bool:
        """Whether its task is running now. It is not if the coroutine of an unfinished task is being destroyed."""
        return asyncio._get_running_loop() is not None and asyncio.current_task() is self._task

    def resume(self) -> None:
        """Continue the same incarnation after a failure."""
        self.state = CellState.RUNNING
        self._listen()

    def fail(self, error: BaseException) -> None:
        """Report that the incarnation failed while it was handling no message."""
        if self.state is CellState.RUNNING:
            self.system.failures.crashed(self, error, None)

    async def suspend(self, *, forever: bool = True) -> bool:
        """End the incarnation now. The message that it was handling returns to the front.

        A handler in a thread or in another process cannot be interrupted, and runs to its end. If that takes longer
        than `stuck_s`, the actor is stuck, and an error is logged. A stuck process is killed. For a stuck thread, this
        waits on if `forever` is set; otherwise it returns False.
        """
        self._life += 1
        task, self._task = self._task, None
        running: list[asyncio.Future[Any]] = []
        if task is not None and task is not asyncio.current_task():
            running.append(task)
            if self.outside is None:
                task.cancel()
        if self.outside is not None:
            running.append(self.outside)
        ended = not running or await self._wait(running, forever)
        if not ended:
            for each in running:
                if each is task:
                    task.cancel()
                    await asyncio.wait([task])
        if self.context is not None:
            self.context.end()
        self.unstash()
        return ended

    def patience_s(self) -> float:
        """How long to wait for a handler that cannot be interrupted before its actor is stuck."""
        in_thread = self.outside is not None and not self.keep.process
        return 0.0 if in_thread and self.system.interrupted else self.keep.stuck_s

    async def _wait(self, running: list[asyncio.Future[Any]], forever: bool) -> bool:
        limit_s = self.patience_s()
        _, pending = await asyncio.wait(running, timeout=limit_s)
        if not pending:
            return True
        state, self.state = self.state, CellState.STUCK
        goes_on = "the actor restarts when the handler ends" if forever else "the handler is left running"
        log.error("%s is stuck: its handler still runs after %g s; %s", self.ref, limit_s, goes_on)
        if isinstance(self.actor, InProcess):
            # Unlike a thread, a process can be killed.
            self.actor.kill()
            forever = True
        if forever:
            await asyncio.wait(running)
            log.warning("%s is no longer stuck", self.ref)
        self.state = state
        return forever

    async def wait_outside(self) -> None:
        """Return when no handler that cannot be interrupted is running."""
        if self.outside is not None:
            await self._wait([self.outside], forever=True)

    def stop_soon(self) -> None:
        """Stop the actor after the current message, or now if there is none."""
        self._ending = self._breaking = True
        if self.current is None and self.state is CellState.RUNNING:
            if self._task is None:
                self.system.failures.ended(self)
            else:
                self.inbox.wake()

    # For the context

    @property
    def way(self) -> Way:
        return self.system.bus

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.system.loop

    async def spawn_child(
        self,
        kind: type[Actor],
        arguments: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        name: str | None,
        options: dict[str, Any],
    ) -> Ref:
        return await self.system.spawn_below(self, ActorSpec(kind, arguments, kwargs or {}), name, options)

    def watch(self, address: str) -> None:
        self.system.watching.watch(self, address)

    def unwatch(self, address: str) -> None:
        self.system.watching.unwatch(self, address)

    def become(self, methods: tuple[Callable[..., Any], ...]) -> None:
        self.plan = self.born_plan.becoming(methods) if methods else self.born_plan
        self.interrupt()

    def send_timed(self, payload: object, timer: Timer | None) -> None:
        fields: Fields = {"sender": self.ref.address}
        if payload.__class__ not in PLAIN:
            fields["schema"] = schema_of(payload.__class__)
        message = self.system.bus.message(self.ref.topic, payload, **fields)
        if timer is not None:
            if self.timed is None:
                self.timed = {}
            self.timed[message.id] = timer
            self.interrupt()
        self.system.background(self._post(message))

    async def _post(self, message: Message) -> None:
        try:
            await self.system.bus.post(message)
        except BaseException:
            if self.timed is not None:
                self.timed.pop(message.id, None)
            raise

    # Hooks

    async def mourn(self, error: BaseException, message: Message | None) -> None:
        """Call the hook `failed` of the ended incarnation, once."""
        if self.actor is not None and not self._mourned and not self._beginning:
            self._mourned = True
            if "failed" in self.born_plan.hooks:
                await self._hook(self.actor.failed(error, message))

    async def bid_farewell(self) -> None:
        """Call the hook `stopped` of the last incarnation, once. If that is still starting, the hook is called after
        its start.
        """
        actor, self.actor = self.actor, None
        if actor is not None and not self._beginning:
            if "stopped" in self.born_plan.hooks:
                await self._hook(actor.stopped())
            if isinstance(actor, InProcess):
                await actor.release()

    async def release(self) -> None:
        """End the process of the incarnation, if it has one. Called after the hooks of the ended incarnation."""
        if isinstance(self.actor, InProcess):
            await self.actor.release()

    async def _hook(self, call: Any) -> None:
        name = getattr(call, "__qualname__", "")
        late = self.system.loop.call_later(
            self.keep.stuck_s, log.error, "%s: its hook %s has not returned yet", self.ref, name
        )
        try:
            await call
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            log.exception("a hook of %s was cancelled", self.ref)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:
            log.exception("a hook of %s raised an error, which is ignored", self.ref)
        finally:
            late.cancel()

    @property
    def is_at_work(self) -> bool:
        return self.state is CellState.RUNNING and self.busy

    @property
    def is_starting(self) -> bool:
        return self.state is CellState.STARTING
