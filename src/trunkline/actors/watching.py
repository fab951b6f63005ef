"""Death watch: an actor is told, by a Terminated, when another one has ended for good, wherever that is.

Systems on the same bus ask each other: whoever watches actors of others publishes their addresses on `_actors`, again
and again. The system that they belong to says which of them are there. When one ends, it says so at once. An actor of
a system that says nothing for `watch_s` seconds counts as ended, as its process may have.
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
"""Whoever publishes here, with a `reply_to`, is told by all systems on the bus which actors they have."""
ASKED: Final = 3
"""Within `watch_s`, so many times."""


class Terminated(msgspec.Struct, frozen=True):
    """Sent to the watchers of an actor when it has ended. `failed` has the reason, if it was an error."""

    __schema__ = TERMINATED

    address: str
    failed: str | None = None


class AreTheyThere(msgspec.Struct, frozen=True):
    """A system asks the others about actors of theirs that it watches."""

    __schema__ = "trunkline.AreTheyThere"

    system: str
    addresses: list[str]


class TheyAre(msgspec.Struct, frozen=True):
    """The answer, and later the news: who is there, and who is not any more, and why."""

    __schema__ = "trunkline.TheyAre"

    there: list[str]
    ended: dict[str, str | None]


class SystemStarted(msgspec.Struct, frozen=True):
    """Said by a system on a broker elsewhere: where one of its name has stopped, nobody need answer for it now."""

    __schema__ = "trunkline.SystemStarted"

    system: str


class DeathWatch:
    """Of one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._far: dict[str, set[str]] = {}
        """Watched actors of other systems: the names of those here who watch them."""
        self._callbacks: dict[str, list[Callable[[str], None]]] = {}
        """Watched actors of other systems: what is to be called when they have ended."""
        self._heard_at: dict[str, float] = {}
        self.silent = False
        """Whether all actors of this system end: then they are not told of each other."""
        self._asking: asyncio.Task[None] | None = None
        self._watchers: dict[str, dict[str, float]] = {}
        """Of actors here: the systems that watch them, and when each has last said so."""

    # Those who watch

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
        """Have something called when an actor of another system has ended."""
        self._far.setdefault(address, set())
        self._callbacks.setdefault(address, []).append(ended)
        self._begin_to_ask(address)

    def _begin_to_ask(self, address: str) -> None:
        system = self._system
        self._heard_at.setdefault(address, system.loop.time())
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
        """It has ended, and watches nobody any more."""
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
        self._heard_at.pop(address, None)
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
            for address in [each for each, heard_at in self._heard_at.items() if now - heard_at >= watch_s]:
                self._tell_far(address, f"its system has not answered for {watch_s:g} s")
            if self._far:
                try:
                    await self._ask(list(self._far))
                except Exception as error:
                    log.warning(
                        "actor system %s cannot check the actors that it watches: %s", system.name, describe(error)
                    )

    # Those who are watched

    def ended(self, address: str, watchers: set[str] | None, failed: BaseException | None) -> None:
        """An actor or a pool of this system has ended for good."""
        why = None if failed is None else describe(failed)
        for name in watchers or ():
            if (watcher := self._system.registry.get(name)) is not None:
                self._tell(watcher, address, why)
        for name in self._watchers.pop(address, {}):
            self._answer(name, [], {address: why})

    def take(self, message: Message) -> bool:
        """A question of another system, or an answer to one of ours. False if it is neither."""
        try:
            if message.schema == AreTheyThere.__schema__:
                self._asked(message.decode(AreTheyThere))
            elif message.schema == TheyAre.__schema__:
                self._told(message.decode(TheyAre))
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

    def _told(self, answer: TheyAre) -> None:
        now = self._system.loop.time()
        for address in answer.there:
            if address in self._heard_at:
                self._heard_at[address] = now
        for address, failed in answer.ended.items():
            if address in self._far:
                self._tell_far(address, failed)

    async def aclose(self) -> None:
        asking, self._asking = self._asking, None
        self._far.clear()
        self._heard_at.clear()
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
