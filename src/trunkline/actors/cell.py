"""A cell: the place of one actor in its system. Mailbox and address last; incarnations come and go in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trunkline.actors.actor import PLAIN, Actor, Plan, schema_of
from trunkline.actors.birth import Birth
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
        """Actors of this system that are told of its end."""
        self.watching: set[str] | None = None
        """Addresses whose end it is told of."""
        self.restarts = 0
        self.born_plan = plan
        """Its handlers as its class has them."""
        self._task: asyncio.Task[None] | None = None
        self._armed = False
        self._life = 0
        """Counts incarnations, and their ends."""
        self._beginning = False
        """Whether an incarnation starts."""
        self._begun: asyncio.Future[None] | None = None
        """Done when it has started, or failed to, if somebody waits for that."""
        self._mourned = False
        """Whether the incarnation's `failed` was called."""

    def open(self) -> None:
        """Have a mailbox."""
        keep = self.keep
        roster = self.system.bus.broker.served
        policy = Overflow.BLOCK if keep.overflow is None else keep.overflow
        self.inbox = inbox = roster.enroll(self.ref.address, self.ref.topic, keep.capacity, policy, Mailbox)
        inbox.belong_to(self, by_priority=keep.overflow is None)

    # Incarnations

    async def begin(self) -> None:
        """A new incarnation; it works from now on. Whatever the actor raises passes through."""
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
        """Return when no incarnation starts any more."""
        while self._beginning:
            if self._begun is None:
                self._begun = self.system.loop.create_future()
            await asyncio.wait([self._begun])

    async def _end_of_start(self, actor: Actor) -> None:
        """Somebody has ended it while it started: another incarnation follows, or none."""
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
            # Nobody stops it: something that the actor waited for was cancelled.
            failure, message, self.current = error, self.current, None
        except GeneratorExit as error:
            if not self._is_stepping():
                raise
            failure, message, self.current = error, self.current, None
        except BaseException as error:
            failure, message, self.current = error, self.current, None
        finally:
            self._rest()
            if self._task is asyncio.current_task():
                self._task = None
        if failure is not None:
            if life == self._life:
                self.system.failures.crashed(self, failure, message)
            elif message is not None:
                # Its incarnation was over before: nothing follows from it but for the message.
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
        """Whether its task runs now; not if the coroutine of a task that never ended is thrown away."""
        return asyncio._get_running_loop() is not None and asyncio.current_task() is self._task

    def resume(self) -> None:
        """Go on after a failure, as if nothing had been."""
        self.state = CellState.RUNNING
        self._listen()

    def fail(self, error: BaseException) -> None:
        """The incarnation has failed, over no message."""
        if self.state is CellState.RUNNING:
            self.system.failures.crashed(self, error, None)

    async def suspend(self, *, forever: bool = True) -> bool:
        """End the incarnation where it is. What it was handling goes first again.

        A handler that cannot be interrupted, in a thread or another process, ends what it does. If that takes longer
        than `stuck_s`, the actor is stuck, and that is said. `forever` waits on; otherwise returns False.
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
        """How long a handler that cannot be interrupted is waited for before its actor is stuck."""
        in_thread = self.outside is not None and not self.keep.process
        return 0.0 if in_thread and self.system.interrupted else self.keep.stuck_s

    async def _wait(self, running: list[asyncio.Future[Any]], forever: bool) -> bool:
        limit_s = self.patience_s()
        _, pending = await asyncio.wait(running, timeout=limit_s)
        if not pending:
            return True
        state, self.state = self.state, CellState.STUCK
        goes_on = "its next incarnation begins when it ends" if forever else "it is left running"
        log.error("%s is stuck: its handler still runs after %g s, %s", self.ref, limit_s, goes_on)
        if isinstance(self.actor, InProcess):
            # A process can be ended, other than a thread.
            self.actor.kill()
            forever = True
        if forever:
            await asyncio.wait(running)
            log.warning("%s is no longer stuck", self.ref)
        self.state = state
        return forever

    async def wait_outside(self) -> None:
        """Return when no handler runs any more that could not be interrupted."""
        if self.outside is not None:
            await self._wait([self.outside], forever=True)

    def stop_soon(self) -> None:
        """The actor wants to end: after what it is handling, or now if that is nothing."""
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
        return await self.system.spawn_below(self, Birth(kind, arguments, kwargs or {}), name, options)

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
        """Call `failed` of the incarnation that is over, once."""
        if self.actor is not None and not self._mourned and not self._beginning:
            self._mourned = True
            if "failed" in self.born_plan.hooks:
                await self._hook(self.actor.failed(error, message))

    async def bid_farewell(self) -> None:
        """Call `stopped` of the last incarnation, once; one that still starts does so when it has started."""
        actor, self.actor = self.actor, None
        if actor is not None and not self._beginning:
            if "stopped" in self.born_plan.hooks:
                await self._hook(actor.stopped())
            if isinstance(actor, InProcess):
                await actor.release()

    async def release(self) -> None:
        """The incarnation is over, and its hooks have been called: its process may end."""
        if isinstance(self.actor, InProcess):
            await self.actor.release()

    async def _hook(self, call: Any) -> None:
        name = getattr(call, "__qualname__", "")
        late = self.system.loop.call_later(
            self.keep.stuck_s, log.error, "%s: its hook %s has not ended", self.ref, name
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
