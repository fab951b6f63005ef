"""The system: actors on a bus. It subscribes for them, starts them, sees what becomes of them, ends them in order."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, Final, Self

import msgspec

from trunkline.actors.actor import Actor, plan_of
from trunkline.actors.cell import Cell, CellState, IdleActors
from trunkline.actors.errors import ActorFailed, SystemStopped, UnknownActor
from trunkline.actors.pool import Pool, Routing
from trunkline.actors.process import InProcess
from trunkline.actors.ref import Ref
from trunkline.actors.settings import Keep, SystemSettings
from trunkline.actors.supervision import Supervisor
from trunkline.bus.bus import Bus
from trunkline.bus.closing import Unfinished
from trunkline.delivery.dead_letters import Cause, DeadLetter, describe, traceback_of
from trunkline.delivery.fates import Fate, Outcome
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.route import offer
from trunkline.delivery.stream import Stream
from trunkline.errors import DuplicateName, Refused
from trunkline.message import Message, MessageType
from trunkline.settings import build
from trunkline.topic import ENDPOINT_PREFIX, endpoint

log = logging.getLogger("trunkline.actors")


ROLL_CALL: Final = "_actors"
"""Whoever publishes here, with a `reply_to`, is told by all systems on the bus which actors they have."""


class SystemState(enum.StrEnum):
    RUNNING = "running"
    SHUTTING_DOWN = "shutting down"
    STOPPED = "stopped"


class Terminated(msgspec.Struct, frozen=True):
    """Told to those who watch an actor: it has ended for good. `failed` says why, if it was an error."""

    address: str
    failed: str | None = None


class ActorHealth(msgspec.Struct, frozen=True):
    """How one actor is doing."""

    address: str
    kind: str
    state: str
    health: str
    """`ok`, `restarting`, `full` (its mailbox, to four fifths), `stopped`."""
    mailbox: int
    capacity: int
    handled: int
    restarts: int
    parent: str | None


class ActorSystem:
    """`async with ActorSystem(bus, "shop") as system`. An actor `greeter` in it has the address `shop.greeter`."""

    def __init__(self, bus: Bus, name: str = "actors", settings: SystemSettings | None = None) -> None:
        self.bus = bus
        self.name = name
        self.settings = settings or SystemSettings()
        self.state = SystemState.STOPPED
        self.failure: ActorFailed | None = None
        self.loop: asyncio.AbstractEventLoop
        self._prefix = f"{ENDPOINT_PREFIX}{name}."
        self._registry: dict[str, Cell] = {}
        """Addresses to mailboxes: nothing else."""
        self._pools: dict[str, Pool] = {}
        self._sizes: dict[str, Callable[[int], Awaitable[Ref]]] = {}
        """How a pool gets another member."""
        self._family = Supervisor(self.settings.strategy)
        self._tasks: set[asyncio.Future[Any]] = set()
        self.idle = IdleActors()
        self._numbers = 0
        self._ended = asyncio.Event()
        self._untap: list[Callable[[], None]] = []
        self._intake: list[tuple[Stream, asyncio.Task[None]]] = []
        self._end: asyncio.Task[None] | None = None

    def address(self, name: str) -> str:
        return f"{self.name}.{name}"

    # Life

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        for pattern in (f"{self._prefix}>", endpoint(self.name)):
            if self.bus.broker.here:
                # Who is meant is looked up once for each topic, and then written to directly.
                self._untap.append(self.bus.broker.tap(pattern, self._route, inbox_of=self._inbox_of))
            else:
                stream = await self.bus.subscribe(pattern, name=f"actors {pattern}").open()
                self._intake.append((stream, self.loop.create_task(self._take_in(stream))))
        self._untap.append(self.bus.broker.tap(ROLL_CALL, self._answer_roll_call, hears=False))
        self.state = SystemState.RUNNING
        log.info("actor system %s: message router started", self.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def shutdown(self, drain_s: float | None = None) -> list[Unfinished]:
        """Let actors handle what waits for them, for up to `drain_s`; then stop them, the last first.

        Returns what was not handled. Shutting down twice is fine.
        """
        if self.state is not SystemState.RUNNING:
            return []
        self.state = SystemState.SHUTTING_DOWN
        await self._drain(self.settings.drain_s if drain_s is None else drain_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left: list[Unfinished] = []
        for name in reversed(self._family.children):
            left += await self._stop(self._registry[name], None)
        for stop in self._untap:
            stop()
        self._untap.clear()
        for stream, task in self._intake:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.aclose()
        self._intake.clear()
        self.state = SystemState.STOPPED
        self._ended.set()
        log.info("actor system %s: message router stopped", self.name)
        if left:
            log.warning("actor system %s stopped with %d messages unfinished", self.name, len(left))
        return left

    async def _drain(self, drain_s: float) -> None:
        """Return when no actor has anything to do, or the time is over. What one does may be work for another."""
        try:
            async with asyncio.timeout(drain_s):
                while busy := [
                    cell for cell in self._registry.values() if cell.state is CellState.RUNNING and cell.busy
                ]:
                    await asyncio.gather(*(cell.inbox.quiet() for cell in busy))
        except TimeoutError:
            log.warning("actor system %s: actors are not done after %g s", self.name, drain_s)

    async def wait(self) -> None:
        """Return when the system has stopped; raises ActorFailed if a failure went all the way up."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure

    # Actors

    async def spawn(self, kind: type[Actor], *arguments: Any, name: str | None = None, **options: Any) -> Ref:
        """Start an actor: `kind(*arguments)`, again for each incarnation. The options are those of `Keep`.

        Returns when it has started. Raises what its `starting` raises, and is then not there.
        """
        return await self.spawn_below(None, kind, arguments, name, options)

    async def spawn_below(
        self, parent: Cell | None, kind: type[Actor], arguments: tuple[Any, ...], name: str | None, options: Any
    ) -> Ref:
        if self.state is not SystemState.RUNNING:
            raise SystemStopped(self.name, self.state.value)
        if name is None:
            self._numbers += 1
            name = f"{kind.__name__.lower()}-{self._numbers}"
        if parent is not None:
            name = f"{parent.name}.{name}"
        if name in self._registry:
            raise DuplicateName("actor", name)
        keep = build(Keep, options) if options else KEEP
        plan = plan_of(kind)
        make: Callable[[], Actor] = functools.partial(kind, *arguments) if arguments else kind
        if keep.process:
            plan, make = plan_of(InProcess), functools.partial(InProcess, kind, arguments)
        cell = Cell(self, name, plan, make, keep, parent)
        cell.open()
        self._registry[name] = cell
        self.bus.broker.forget_route(cell.ref.topic)
        try:
            await cell.begin()
        except BaseException:
            await self._forget(cell)
            raise
        self._family_of(cell).add(name, keep.restart)
        return cell.ref

    async def pool(
        self,
        kind: type[Actor],
        *arguments: Any,
        size: int,
        name: str,
        routing: Routing = Routing.ROUND_ROBIN,
        key: str | Callable[[Message], object] = "sender",
        **options: Any,
    ) -> Ref:
        """Start `size` actors behind one address, `<system>.<name>`; each message goes to one of them.

        They have addresses of their own as well, `<system>.<name>.1` and so on.
        """
        if self.state is not SystemState.RUNNING:
            raise SystemStopped(self.name, self.state.value)
        if name in self._registry or name in self._pools:
            raise DuplicateName("actor", name)
        self._pools[name] = Pool(Routing(routing), key)
        self._sizes[name] = lambda number: self.spawn(kind, *arguments, name=f"{name}.{number}", **options)
        self.bus.broker.forget_route(endpoint(self.address(name)))
        await self.resize(name, size)
        return Ref(self.bus, self.address(name))

    async def resize(self, pool: Ref | str, size: int) -> None:
        """Have more or fewer actors in a pool. Those that go handle what waits for them first."""
        name = (pool.address if isinstance(pool, Ref) else pool).removeprefix(f"{self.name}.")
        members = self._pools.get(name)
        if members is None:
            raise UnknownActor(self.address(name))
        while len(members.members) < size:
            number = next(each for each in count(1) if f"{name}.{each}" not in self._registry)
            ref = await self._sizes[name](number)
            members.add(self._find(ref.address))
        while len(members.members) > size:
            last = members.members[-1]
            members.remove(last)
            await self.stop(last.ref, self.settings.drain_s)

    def ref(self, address: str) -> Ref:
        """A reference to an actor, of this system or another one on the same bus; whether it is there or not."""
        return Ref(self.bus, address)

    def _family_of(self, cell: Cell) -> Supervisor:
        if cell.parent is None:
            return self._family
        if cell.parent.family is None:
            cell.parent.family = Supervisor(cell.parent.keep.strategy)
        return cell.parent.family

    def _find(self, address: str) -> Cell:
        cell = self._registry.get(address.removeprefix(f"{self.name}."))
        if cell is None:
            raise UnknownActor(address)
        return cell

    async def stop(self, ref: Ref | str, drain_s: float | None = None) -> list[Unfinished]:
        """End an actor and its children, for good; what it had not handled. It has `drain_s` to do so."""
        cell = self._find(ref.address if isinstance(ref, Ref) else ref)
        if drain_s:
            try:
                async with asyncio.timeout(drain_s):
                    await cell.inbox.quiet()
            except TimeoutError:
                log.warning("%s is not done after %g s", cell.ref, drain_s)
        self._family_of(cell).remove(cell.name)
        return await self._stop(cell, None)

    async def _stop(self, cell: Cell, failed: BaseException | None) -> list[Unfinished]:
        if cell.state is CellState.STOPPED:
            return []
        cell.state = CellState.STOPPING
        actor = cell.actor
        await cell.suspend()
        left = await self._stop_children(cell)
        if actor is not None and "stopped" in cell.plan.hooks:
            await self._hook(cell, actor.stopped())
        left += [
            Unfinished(
                message,
                Outcome(
                    cell.ref.address,
                    Fate.DROPPED,
                    "its actor was stopped before it was handled",
                    self.bus.broker.world.time_ns(),
                ),
            )
            for message in cell.inbox.unfinished()
        ]
        await self._forget(cell)
        cell.state = CellState.STOPPED
        for watcher in cell.watchers or ():
            other = self._registry.get(watcher)
            if other is not None:
                notice = Terminated(cell.ref.address, None if failed is None else describe(failed))
                self.background(other.ref.tell(notice, sender=cell.ref.address))
        return left

    async def _stop_children(self, cell: Cell) -> list[Unfinished]:
        left: list[Unfinished] = []
        if cell.family is not None:
            for name in reversed(cell.family.children):
                cell.family.remove(name)
                left += await self._stop(self._registry[name], None)
        return left

    async def _forget(self, cell: Cell) -> None:
        self._registry.pop(cell.name, None)
        pool = self._pools.get(cell.name.rpartition(".")[0])
        if pool is not None and cell in pool.members:
            pool.remove(cell)
        self.bus.broker.forget_route(cell.ref.topic)
        self.bus.broker.served.part(cell.inbox)
        if cell.memory is not None:
            await cell.memory.aclose()

    async def _hook(self, cell: Cell, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception:
            log.exception("a hook of %s raised: it must not", cell.ref)

    # Failures

    def crashed(self, cell: Cell, error: BaseException, message: Message | None) -> None:
        """An incarnation has failed; told by its cell."""
        cell.state = CellState.RESTARTING
        log.error("%s failed: %s", cell.ref, describe(error), exc_info=error)
        if message is not None:
            cell.failed_on(message, error)
        self._start(self._supervise(cell, error, message))

    def ended(self, cell: Cell) -> None:
        """An actor has stopped by itself; told by its cell."""
        cell.state = CellState.RESTARTING
        self._start(self._supervise(cell, None, None))

    async def _supervise(self, cell: Cell, error: BaseException | None, message: Message | None) -> None:
        actor = cell.actor
        await cell.suspend()
        if actor is not None and error is not None and "failed" in cell.plan.hooks:
            await self._hook(cell, actor.failed(error, message))
        family = self._family_of(cell)
        if cell.name not in family:
            # Somebody has stopped it meanwhile.
            return
        verdict = family.ended(cell.name, self.loop.time(), failed=error is not None)
        if verdict.escalate:
            await self._escalate(cell, error)
        elif verdict.restart:
            await self._restart([self._registry[name] for name in verdict.restart], verdict.pause_s)
        else:
            if actor is not None and error is None and "stopped" in cell.plan.hooks:
                await self._hook(cell, actor.stopped())
            await self._stop(cell, error)

    async def _restart(self, cells: list[Cell], pause_s: float) -> None:
        for cell in reversed(cells):
            cell.state = CellState.RESTARTING
            await cell.suspend()
            await self._stop_children(cell)
        await asyncio.sleep(pause_s)
        for cell in cells:
            if cell.state is not CellState.RESTARTING or self.state is SystemState.STOPPED:
                continue
            cell.restarts += 1
            try:
                await cell.begin()
            except Exception as error:
                if cell.is_starting:
                    self.crashed(cell, error, None)

    async def _escalate(self, cell: Cell, error: BaseException | None) -> None:
        """It fails too often: that is a failure of its parent, or of the whole system."""
        parent = cell.parent
        why = ActorFailed(cell.ref.address, cell.restarts, describe(error) if error is not None else "it stopped")
        await self._stop(cell, error)
        if parent is not None:
            self.crashed(parent, why, None)
            return
        log.critical("actor system %s stops: %s", self.name, why)
        self.failure = why
        # Not among the tasks that a shutdown ends.
        self._end = self.loop.create_task(self._give_up())

    async def _give_up(self) -> None:
        await self.shutdown(0.0)

    # Watching

    def watch(self, watcher: Cell, address: str) -> None:
        name = address.removeprefix(f"{self.name}.")
        cell = self._registry.get(name)
        if cell is None:
            # It is gone already, or never was: that is what is to be told.
            self.background(watcher.ref.tell(Terminated(address), sender=address))
            return
        if cell.watchers is None:
            cell.watchers = set()
        cell.watchers.add(watcher.name)

    def unwatch(self, watcher: Cell, address: str) -> None:
        cell = self._registry.get(address.removeprefix(f"{self.name}."))
        if cell is not None and cell.watchers is not None:
            cell.watchers.discard(watcher.name)

    def actors(self) -> list[ActorHealth]:
        """All actors, and how they are."""
        return [_health(cell) for cell in self._registry.values()]

    def _answer_roll_call(self, message: Message) -> None:
        if message.reply_to:
            self.background(self.bus.publish(message.reply_to, self.actors()))

    # Routing

    def _inbox_of(self, topic: str) -> Inbox | None:
        cell = self._registry.get(topic.removeprefix(self._prefix))
        return None if cell is None else cell.inbox

    def _route(self, message: Message) -> tuple[Inbox, ...]:
        inbox = self._inbox_of(message.topic)
        if inbox is not None:
            return (inbox,)
        pool = self._pools.get(message.topic.removeprefix(self._prefix))
        if pool is not None and (chosen := pool.pick(message)) is not None:
            return (chosen.inbox,)
        self._unknown(message)
        return ()

    async def _take_in(self, stream: Stream) -> None:
        """What comes from elsewhere: the hub is given credit as mailboxes take it, so that nothing piles up here."""
        async for batch in stream.batches():
            for message in batch:
                unsettled = offer(message, self._route(message))
                if unsettled is not None:
                    try:
                        await unsettled.settle(self.bus.settings.backpressure)
                    except Refused as error:
                        # It is a dead letter, or was dropped: who sent it is elsewhere, and not told.
                        log.debug("%s: %s", message.id, error)

    def _unknown(self, message: Message) -> None:
        """Nobody has this address."""
        if message.topic == endpoint(self.name):
            cause, why = Cause.NO_RECIPIENT, "it names the system, and no actor in it"
        elif self.state is not SystemState.RUNNING:
            cause, why = Cause.NOT_RUNNING, f"its system is {self.state.value}"
        else:
            cause, why = Cause.UNKNOWN_ACTOR, "there is no such actor"
        address = message.topic.removeprefix(ENDPOINT_PREFIX)
        log.warning("message %s to %s is a dead letter: %s", message.id, address, why)
        self.bury(message, address, cause, why)
        if message.type is MessageType.REQUEST:
            # Whoever asks need not wait for nothing.
            self.background(self.bus.respond_error(message, UnknownActor(address)))

    def bury(self, message: Message, address: str, cause: Cause, why: str, error: BaseException | None = None) -> None:
        self.bus.broker.served.bury(
            DeadLetter(
                message,
                address,
                cause,
                why,
                type(error).__name__ if error is not None else "",
                traceback_of(error) if error is not None else "",
                (),
                self.bus.broker.world.time_ns(),
            )
        )

    # Work beside

    def background(self, work: Awaitable[Any]) -> None:
        """Have something sent without waiting for it. What is refused is on record."""

        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("actor system %s: %s", self.name, describe(error))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


KEEP = Keep()


def _health(cell: Cell) -> ActorHealth:
    inbox = cell.inbox
    if cell.state is CellState.RUNNING:
        health = "full" if inbox.depth >= 0.8 * inbox.capacity else "ok"
    else:
        health = cell.state.value
    return ActorHealth(
        address=cell.ref.address,
        kind=cell.plan.name,
        state=cell.state.value,
        health=health,
        mailbox=inbox.depth,
        capacity=inbox.capacity,
        handled=cell.handled,
        restarts=cell.restarts,
        parent=None if cell.parent is None else cell.parent.ref.address,
    )
