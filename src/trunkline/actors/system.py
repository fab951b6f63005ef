"""The system: actors on a bus. It starts them, lists them, and stops them in order."""

from __future__ import annotations

import asyncio
import enum
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

from trunkline.actors.actor import Actor
from trunkline.actors.actor_spec import ActorSpec
from trunkline.actors.cell import Cell
from trunkline.actors.errors import ActorFailed, ActorStopped, SystemStopped, UnknownActor
from trunkline.actors.failures import Failures
from trunkline.actors.health import ActorHealth, health_of
from trunkline.actors.idle import IdleActors
from trunkline.actors.message_fates import CellState
from trunkline.actors.message_router import MessageRouter
from trunkline.actors.pool import Pool, Routing
from trunkline.actors.ref import Ref, address_of
from trunkline.actors.routers import Routers
from trunkline.actors.settings import Keep, SystemSettings
from trunkline.actors.supervision import Supervisor
from trunkline.actors.watching import DeathWatch
from trunkline.bus.bus import Bus
from trunkline.bus.closing import NOTICE_S, Unfinished
from trunkline.bus.handler_threads import HandlerThreads
from trunkline.bus.requester import expects_ack
from trunkline.delivery.dead_letters import Cause, DeadLetter, describe, traceback_of
from trunkline.delivery.fates import Fate, Outcome
from trunkline.errors import Closed, DuplicateName, InvalidTopic, Refused
from trunkline.message import Message, MessageType
from trunkline.plural import counted
from trunkline.settings import build
from trunkline.topic import endpoint, validate_topic

log = logging.getLogger("trunkline.actors")

PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,50}(\.[A-Za-z0-9_-]{1,50}){0,3}").fullmatch


class SystemState(enum.StrEnum):
    RUNNING = "running"
    SHUTTING_DOWN = "shutting down"
    STOPPED = "stopped"


class ActorSystem:
    """`async with ActorSystem(bus, "shop") as system`. An actor `greeter` in it has the address `shop.greeter`."""

    def __init__(self, bus: Bus, name: str = "actors", settings: SystemSettings | None = None) -> None:
        self.bus = bus
        self.name = name
        self.settings = settings or SystemSettings()
        self.state = SystemState.STOPPED
        self.failure: ActorFailed | None = None
        self.loop: asyncio.AbstractEventLoop
        self.registry: dict[str, Cell] = {}
        """The actors by name."""
        self.routers = Routers(self)
        self.failures = Failures(self)
        self.watching = DeathWatch(self)
        self.idle = IdleActors()
        self._keep = Keep(restart=self.settings.restart)
        self._router = MessageRouter(self)
        self._threads: HandlerThreads | None = None
        self.interrupted = False
        """Whether it ends by Ctrl-C or by cancellation: then handlers in threads have `drain_s` to end, and no more
        time."""
        self._family = Supervisor(self.settings.strategy)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._numbers = 0
        self._ended = asyncio.Event()
        self._end: asyncio.Task[Any] | None = None

    def address(self, name: str) -> str:
        return f"{self.name}.{name}"

    def owns(self, address: str) -> bool:
        """Whether an address belongs to this system, even if no actor has it."""
        return address.startswith(f"{self.name}.")

    @property
    def is_running(self) -> bool:
        return self.state is SystemState.RUNNING

    @property
    def is_alive(self) -> bool:
        return self.state is not SystemState.STOPPED

    # Life

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        await self._router.open()
        self.state = SystemState.RUNNING
        log.info("actor system %s: message router started", self.name)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.interrupted = kind is not None and issubclass(kind, (asyncio.CancelledError, KeyboardInterrupt))
        await self.shutdown()

    async def shutdown(self, drain_s: float | None = None) -> list[Unfinished]:
        """Let actors handle their waiting messages, for up to `drain_s`; then stop them, the last first.

        From the start of the shutdown, messages from outside become dead letters, and requests fail at once; actors can
        still reach each other. Returns the messages that were not handled. Shutting down twice is allowed. If it is
        cancelled while actors handle their waiting messages, it stops them at once.
        """
        if self.state is not SystemState.RUNNING:
            return []
        self.state = SystemState.SHUTTING_DOWN
        self._router.narrow()
        try:
            await self._drain(self.settings.drain_s if drain_s is None else drain_s)
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        finally:
            left = await self._stop_all()
        return left

    async def _stop_all(self) -> list[Unfinished]:
        await self._cancel_tasks()
        self.watching.silent = True
        left: list[Unfinished] = []
        for name in reversed(self._family.children):
            left += await self.end_actor(self.registry[name], None)
        await self.watching.aclose()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._router.aclose()
        self.state = SystemState.STOPPED
        if self._threads is not None:
            # A handler that still runs is not waited for: it was logged when its actor was stopped.
            self._threads.close(wait=False)
            self._threads = None
        self._ended.set()
        log.info("actor system %s: message router stopped", self.name)
        if left:
            log.warning("actor system %s stopped with %s unfinished", self.name, counted(len(left), "message"))
        return left

    async def _drain(self, drain_s: float) -> None:
        """Return when no actor is busy, or after `drain_s`. It checks again each time, because one actor may send to
        another.
        """
        notice = self.loop.call_later(NOTICE_S, self._log_what_it_waits_for, drain_s) if self.interrupted else None
        try:
            async with asyncio.timeout(drain_s):
                while busy := self._busy():
                    await asyncio.gather(*(cell.inbox.quiet() for cell in busy))
        except TimeoutError:
            log.warning("actor system %s: actors have not finished after %g s", self.name, drain_s)
        finally:
            if notice is not None:
                notice.cancel()

    def _busy(self) -> list[Cell]:
        return [cell for cell in self.registry.values() if cell.state is CellState.RUNNING and cell.busy]

    def _log_what_it_waits_for(self, drain_s: float) -> None:
        if names := sorted(cell.ref.address for cell in self._busy()):
            log.warning(
                "waiting up to %g s for actors to finish: %s. Press Ctrl-C again to stop now", drain_s, ", ".join(names)
            )

    async def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def give_up(self, why: ActorFailed) -> None:
        """Stop the system because of a failure that nothing else handles, such as that of a top-level actor."""
        log.critical("actor system %s stops: %s", self.name, why)
        self.failure = why
        # Not one of the tasks that a shutdown cancels.
        self._end = self.loop.create_task(self.shutdown(0.0))

    async def wait(self) -> None:
        """Return when the system has stopped; raises ActorFailed if it stopped because of a failure."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def threads(self) -> HandlerThreads:
        """The threads for plain `def` handlers. They belong to this system, so that other work of the program cannot
        delay them.
        """
        if self._threads is None:
            self._threads = HandlerThreads(f"actors {self.name}", self.settings.max_threads)
        return self._threads

    # Actors

    async def spawn(
        self,
        kind: type[Actor],
        *arguments: Any,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Ref:
        """Start an actor: `kind(*arguments, **kwargs)`, again for each incarnation. The options are those of `Keep`.

        Other keywords are passed to the constructor. Returns when the actor has started. An error of its `starting` is
        raised here, and the actor does not exist then.
        """
        return await self.spawn_below(None, ActorSpec(kind, arguments, kwargs or {}), name, options)

    async def spawn_below(self, parent: Cell | None, spec: ActorSpec, name: str | None, options: dict[str, Any]) -> Ref:
        if name is None:
            self._numbers += 1
            name = f"{spec.kind.__name__.lower()}-{self._numbers}"
        if parent is not None:
            name = f"{parent.name}.{name}"
        self.check_free(name)
        keep = self._keep
        if options:
            spec, options = spec.split(options)
            keep = build(Keep, {"restart": self.settings.restart, **options})
        plan, make = spec.plan(keep)
        cell = Cell(self, name, plan, make, keep, parent)
        cell.open()
        self.registry[name] = cell
        try:
            if (opening := self._router.attend(cell)) is not None:
                await opening
            await cell.begin()
        except BaseException:
            await self.stop_children(cell)
            await self._forget(cell)
            raise
        if self.registry.get(name) is not cell:
            # It was stopped while it started.
            raise ActorStopped(cell.ref.address)
        self.family_of(cell).add(name, keep.restart)
        return cell.ref

    def check_free(self, name: str) -> None:
        """Check the name of a new actor or router. Raises InvalidTopic, DuplicateName, or SystemStopped."""
        # The regular expression takes a tenth of the time of the full check, and accepts nearly all valid names.
        if name.__class__ is not str:
            raise InvalidTopic(str(name), f"is not a string: it is of type {type(name).__name__}")
        if PLAIN_NAME(name) is None:
            validate_topic(endpoint(self.address(name)))
        if self.state is not SystemState.RUNNING:
            raise SystemStopped(self.name, self.state.value)
        if name in self.registry or name in self.routers.pools:
            raise DuplicateName("actor", name)

    def ref(self, address: str) -> Ref:
        """A reference to an actor of this system or another one on the same bus, whether it exists or not."""
        return Ref(self.bus, address)

    def actors(self) -> list[ActorHealth]:
        """All actors, with their state and counters."""
        return [health_of(cell) for cell in self.registry.values()]

    # Routers

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
        """Start `size` actors behind one address, `<system>.<name>`; each message goes to one of them, or to all.

        They have addresses of their own as well, `<system>.<name>.1` and so on.
        """
        return await self.routers.pool(
            name, Pool(Routing(routing), key), size, partial(self.spawn, kind, *arguments, **options)
        )

    async def group(
        self,
        members: Sequence[Ref | str],
        *,
        name: str,
        routing: Routing = Routing.ROUND_ROBIN,
        key: str | Callable[[Message], object] = "sender",
    ) -> Ref:
        """Put existing actors behind one address, `<system>.<name>`; also actors of other systems.

        A member leaves the group when it ends.
        """
        return self.routers.group(name, Pool(Routing(routing), key), [address_of(member) for member in members])

    async def resize(self, pool: Ref | str, size: int) -> None:
        """Change the number of actors in a pool. Actors that are removed handle their waiting messages first."""
        await self.routers.resize(address_of(pool).removeprefix(f"{self.name}."), size)

    # The end of an actor

    def family_of(self, cell: Cell) -> Supervisor:
        if cell.parent is None:
            return self._family
        if cell.parent.family is None:
            cell.parent.family = Supervisor(cell.parent.keep.strategy)
        return cell.parent.family

    def find(self, address: str) -> Cell:
        cell = self.registry.get(address.removeprefix(f"{self.name}."))
        if cell is None:
            raise UnknownActor(address)
        return cell

    def watched(self, address: str) -> set[str] | None:
        """The watchers of an actor or a router of this system; None if there is none with this address."""
        name = address.removeprefix(f"{self.name}.")
        if (pool := self.routers.pools.get(name)) is not None:
            return pool.watchers
        cell = self.registry.get(name)
        if cell is None:
            return None
        if cell.watchers is None:
            cell.watchers = set()
        return cell.watchers

    async def stop(self, ref: Ref | str, drain_s: float | None = None) -> list[Unfinished]:
        """Stop an actor and its children, or a pool and its members; return the messages they had not handled.

        The actor has `drain_s` to handle its waiting messages. The call waits for a handler that cannot be interrupted,
        up to the actor's `stuck_s`; after that an error is logged, and the outcome of the message says that it still
        runs.
        """
        name = address_of(ref).removeprefix(f"{self.name}.")
        if name in self.routers.pools:
            return await self.routers.stop(name, drain_s)
        cell = self.find(address_of(ref))
        if drain_s:
            try:
                async with asyncio.timeout(drain_s):
                    await cell.inbox.quiet()
            except TimeoutError:
                log.warning("%s has not stopped after %g s", cell.ref, drain_s)
        self.family_of(cell).remove(cell.name)
        return await self.end_actor(cell, None)

    async def end_actor(self, cell: Cell, failed: BaseException | None) -> list[Unfinished]:
        """End an actor and its children permanently."""
        if cell.state is CellState.STOPPED:
            return []
        cell.state = CellState.STOPPING
        handled = cell.current
        ended = await cell.suspend(forever=False)
        left = await self.stop_children(cell)
        # `stopped` is not called while a handler still runs.
        if ended:
            await cell.bid_farewell()
        messages = cell.inbox.unfinished()
        left += [self._unfinished(cell, message, ended or message is not handled) for message in messages]
        await self._forget(cell)
        cell.state = CellState.STOPPED
        await self._answer_waiting(cell, messages)
        self.watching.left(cell)
        self.watching.ended(cell.ref.address, cell.watchers, failed)
        self.routers.left(cell, failed)
        return left

    def _unfinished(self, cell: Cell, message: Message, ended: bool) -> Unfinished:
        why = "its actor was stopped before it was handled"
        if not ended:
            why = f"its actor was stopped, but its handler still runs: it had {cell.patience_s():g} s to end"
        return Unfinished(message, Outcome(cell.ref.address, Fate.DROPPED, why, self.bus.broker.world.time_ns()))

    async def _answer_waiting(self, cell: Cell, messages: list[Message]) -> None:
        """Send an error to each sender that waits for an answer or an acknowledgement."""
        for message in messages:
            if message.type is MessageType.REQUEST or expects_ack(message):
                try:
                    await self.bus.respond_error(message, ActorStopped(cell.ref.address))
                except (Refused, Closed, InvalidTopic) as error:
                    log.warning(
                        "%s: the requester could not be informed that the actor was stopped: %s",
                        cell.ref,
                        describe(error),
                    )

    async def stop_children(self, cell: Cell) -> list[Unfinished]:
        left: list[Unfinished] = []
        if cell.family is not None:
            for name in reversed(cell.family.children):
                cell.family.remove(name)
                left += await self.end_actor(self.registry[name], None)
        return left

    async def _forget(self, cell: Cell) -> None:
        self.registry.pop(cell.name, None)
        self._router.leave(cell)
        self.bus.broker.served.part(cell.inbox)
        if cell.memory is not None:
            await cell.memory.aclose()

    # Background work

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

    def background(self, work: Awaitable[Any]) -> None:
        """Send something without waiting for it. An error is logged."""

        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("actor system %s: a message was not sent: %s", self.name, describe(error))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
