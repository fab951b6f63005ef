"""Death watch: an actor gets a Terminated when another actor, in any process, has ended permanently.

A system that watches actors of other systems on the same bus publishes their addresses on `_actors`, again and again.
The system that they belong to answers which of them exist. When one of them ends, it sends a notice at once. If a
system does not answer for `watch_s` seconds, its actors count as ended, because its process may have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.actors.mailbox import TERMINATED
from trunkline.delivery.dead_letters import describe
from trunkline.errors import InvalidPayload
from trunkline.message import Message
from trunkline.message_log import about
from trunkline.topic import endpoint

if TYPE_CHECKING:
    from trunkline.actors.cell import Cell
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")

ROLL_CALL: Final = "_actors"
"""If a message on this topic has a `reply_to`, all systems on the bus answer with their actors."""
ASKED: Final = 3
"""The number of queries within `watch_s`."""


class Terminated(msgspec.Struct, frozen=True):
    """Sent to the watchers of an actor when it has ended. `failed` has the reason, if it was an error."""

    __schema__ = TERMINATED

    address: str
    failed: str | None = None


class AreTheyThere(msgspec.Struct, frozen=True):
    """The query of a system about actors of other systems that it watches."""

    __schema__ = "trunkline.AreTheyThere"

    system: str
    addresses: list[str]


class TheyAre(msgspec.Struct, frozen=True):
    """The answer to a query, or a later notice: which actors exist, and which have ended, with the reason."""

    __schema__ = "trunkline.TheyAre"

    there: list[str]
    ended: dict[str, str | None]


class SystemStarted(msgspec.Struct, frozen=True):
    """Announces the start of a system on a broker in another process. A process in which a system of this name has
    stopped then no longer answers for it.
    """

    __schema__ = "trunkline.SystemStarted"

    system: str


class DeathWatch:
    """The death watch of one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._far: dict[str, set[str]] = {}
        """Watched actors of other systems, with the names of their watchers in this system."""
        self._callbacks: dict[str, list[Callable[[str], None]]] = {}
        """Watched actors of other systems, with the functions to call when they have ended."""
        self._answered_at: dict[str, float] = {}
        self.silent = False
        """Whether the whole system is stopping: then its actors get no notices about each other."""
        self._asking: asyncio.Task[None] | None = None
        self._watchers: dict[str, dict[str, float]] = {}
        """Watched actors of this system, with the systems that watch them and the time of the last query of each."""

    # Watchers

    def watch(self, watcher: Cell, address: str) -> None:
        system = self._system
        if watcher.watching is None:
            watcher.watching = set()
        watcher.watching.add(address)
        if system.owns(address):
            if (known := system.watched(address)) is None:
                self._tell(watcher, address, None)
            else:
                known.add(watcher.name)
        elif system.bus.broker.here and not system.bus.broker.lane(endpoint(address)).has_subscribers:
            self._tell(watcher, address, None)
        else:
            self._far.setdefault(address, set()).add(watcher.name)
            self._begin_to_ask(address)

    def watch_for(self, address: str, ended: Callable[[str], None]) -> None:
        """Call `ended` when an actor of another system has ended."""
        self._far.setdefault(address, set())
        self._callbacks.setdefault(address, []).append(ended)
        self._begin_to_ask(address)

    def _begin_to_ask(self, address: str) -> None:
        system = self._system
        self._answered_at.setdefault(address, system.loop.time())
        system.background(self._ask([address]))
        if self._asking is None:
            self._asking = system.loop.create_task(self._ask_on())

    def unwatch(self, watcher: Cell, address: str) -> None:
        if watcher.watching is not None:
            watcher.watching.discard(address)
        if (known := self._system.watched(address)) is not None:
            known.discard(watcher.name)
        if (names := self._far.get(address)) is not None:
            names.discard(watcher.name)
            if not names and address not in self._callbacks:
                self._forget(address)

    def left(self, watcher: Cell) -> None:
        """Remove a watcher that has ended."""
        for address in tuple(watcher.watching or ()):
            self.unwatch(watcher, address)

    def _tell(self, watcher: Cell, address: str, failed: str | None) -> None:
        if watcher.watching is not None:
            watcher.watching.discard(address)
        if self.silent:
            return
        notice = Terminated(address, failed)
        self._system.background(watcher.ref.tell(notice, sender=address))

    def _tell_far(self, address: str, failed: str | None) -> None:
        names, callbacks = self._far.get(address, set()), self._callbacks.pop(address, [])
        self._forget(address)
        for ended in callbacks:
            ended(address)
        for name in names:
            if (watcher := self._system.registry.get(name)) is not None:
                self._tell(watcher, address, failed)

    def _forget(self, address: str) -> None:
        self._far.pop(address, None)
        self._answered_at.pop(address, None)
        if not self._far and self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask(self, addresses: list[str]) -> None:
        question = AreTheyThere(self._system.name, addresses)
        await self._system.bus.publish(ROLL_CALL, question, schema=AreTheyThere.__schema__)

    async def _ask_on(self) -> None:
        system = self._system
        watch_s = system.settings.watch_s
        while self._far:
            await asyncio.sleep(watch_s / ASKED)
            now = system.loop.time()
            for address in [each for each, answered_at in self._answered_at.items() if now - answered_at >= watch_s]:
                self._tell_far(address, f"its system has not answered for {watch_s:g} s")
            if self._far:
                try:
                    await self._ask(list(self._far))
                except Exception as error:
                    log.warning(
                        "actor system %s cannot check the actors that it watches: %s", system.name, describe(error)
                    )

    # Watched actors

    def ended(self, address: str, watchers: set[str] | None, failed: BaseException | None) -> None:
        """Notify the watchers of an actor or a pool of this system that has ended permanently."""
        why = None if failed is None else describe(failed)
        for name in watchers or ():
            if (watcher := self._system.registry.get(name)) is not None:
                self._tell(watcher, address, why)
        for name in self._watchers.pop(address, {}):
            self._answer(name, [], {address: why})

    def take(self, message: Message) -> bool:
        """Process a query from another system, or an answer to a query of this one. False if the message is neither."""
        try:
            if message.schema == AreTheyThere.__schema__:
                self._asked(message.decode(AreTheyThere))
            elif message.schema == TheyAre.__schema__:
                self._on_answer(message.decode(TheyAre))
            else:
                return False
        except InvalidPayload as error:
            log.warning(
                "actor system %s cannot read %s: %s", self._system.name, message.id, error, extra=about(message)
            )
        return True

    def _asked(self, question: AreTheyThere) -> None:
        system = self._system
        now = system.loop.time()
        there: list[str] = []
        ended: dict[str, str | None] = {}
        for address in filter(system.owns, question.addresses):
            if system.watched(address) is None:
                ended[address] = None
                continue
            there.append(address)
            watchers = self._watchers.setdefault(address, {})
            watchers[question.system] = now
            for name in [
                each for each, asked_at in watchers.items() if now - asked_at > ASKED * system.settings.watch_s
            ]:
                del watchers[name]
        if there or ended:
            self._answer(question.system, there, ended)

    def _answer(self, name: str, there: list[str], ended: dict[str, str | None]) -> None:
        answer = TheyAre(there, ended)
        self._system.background(self._system.bus.publish(endpoint(name), answer, schema=TheyAre.__schema__))

    def _on_answer(self, answer: TheyAre) -> None:
        now = self._system.loop.time()
        for address in answer.there:
            if address in self._answered_at:
                self._answered_at[address] = now
        for address, failed in answer.ended.items():
            if address in self._far:
                self._tell_far(address, failed)

    async def aclose(self) -> None:
        asking, self._asking = self._asking, None
        self._far.clear()
        self._answered_at.clear()
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
