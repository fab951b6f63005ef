"""Arrivals: what comes to a system from elsewhere, over a hub or an engine.

One subscription takes in what is for any actor, and never waits. What is for a full mailbox waits for room in a line;
when as many wait as may, the rest are dead letters. An actor whose senders are to wait (`overflow="block"`) has a
subscription of its own at a hub, and so credit of its own: what it has no room for stays at the hub, and its senders
wait for it alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from trunkline.actors.errors import ActorFailed
from trunkline.brokers.broker import Feature
from trunkline.delivery.dead_letters import Cause, describe
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.route import Unsettled, offer
from trunkline.delivery.stream import Stream
from trunkline.errors import Closed, Refused
from trunkline.message import Message, MessageType
from trunkline.topic import BROADCAST, ENDPOINT_PREFIX

if TYPE_CHECKING:
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")

RETIRE_S: Final = 0.5
"""The subscription of an actor that has ended is closed when nothing has come for it for so long."""


class ActorSubscription:
    """One subscription, and the task that reads it."""

    def __init__(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self.stream = stream
        self.task = task
        self.wanted = True
        """Whether its actor is there."""

    async def aclose(self) -> None:
        """Hand in what has arrived; then nothing more comes."""
        self.stream.stop()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.stream.aclose()


class Arrivals:
    """Of one system. `route` says whom a message is for, and deals with what is for nobody."""

    def __init__(self, system: ActorSystem, route: Callable[[Message], tuple[Inbox, ...]]) -> None:
        self._system = system
        self._bus = system.bus
        self._route = route
        self._shared: list[ActorSubscription] = []
        self._own: dict[str, ActorSubscription] = {}
        """By topic: those of actors whose senders wait."""
        self._waiting: dict[str, deque[tuple[Message, Unsettled]]] = {}
        """By topic: what waits for room in a mailbox."""
        self._settling: set[asyncio.Task[None]] = set()

    async def open(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            self._shared.append(await self._line(pattern, self._take))

    async def attend(self, topic: str) -> None:
        """Have a subscription for one actor alone, if the broker makes publishers wait."""
        if (line := self._own.get(topic)) is not None:
            line.wanted = True
        elif Feature.BACKPRESSURE in self._bus.broker.features:
            self._own[topic] = await self._line(topic, self._take_slowly)

    def leave(self, topic: str) -> None:
        """Its actor has ended."""
        if (line := self._own.get(topic)) is not None:
            line.wanted = False
            self._system.background(self._retire(topic, line))

    async def _retire(self, topic: str, line: ActorSubscription) -> None:
        """What waits at the hub comes first, and is answered: the actor is gone."""
        inbox = line.stream.inbox
        before = -1
        while inbox.books.accepted != before or inbox.in_flight:
            before = inbox.books.accepted
            await asyncio.sleep(RETIRE_S)
        if not line.wanted:
            await line.aclose()
            if not line.wanted:
                del self._own[topic]

    async def aclose(self) -> None:
        for line in (*self._shared, *self._own.values()):
            await line.aclose()
        await asyncio.gather(*self._settling)
        self._shared.clear()
        self._own.clear()

    async def _line(self, pattern: str, take: Callable[[Stream], Awaitable[None]]) -> ActorSubscription:
        family = f"actors {self._system.name}"
        stream = await self._bus.subscribe(pattern, name=f"actors {pattern}", one_of=family).open()
        return ActorSubscription(stream, self._system.loop.create_task(self._read(stream, take)))

    async def _read(self, stream: Stream, take: Callable[[Stream], Awaitable[None]]) -> None:
        try:
            await take(stream)
        except Closed as error:
            log.warning("actor system %s receives no more messages: %s", self._system.name, error)
        except Exception as error:
            # Without this subscription no actor hears from elsewhere: a system that looks alive would be worse.
            log.exception("actor system %s no longer receives messages on %s", self._system.name, stream.inbox.pattern)
            why = f"its subscription to {stream.inbox.pattern} ended: {describe(error)}"
            self._system.give_up(ActorFailed(self._system.name, 0, why))

    # What comes

    async def _take(self, stream: Stream) -> None:
        async for batch in stream.batches():
            for message in batch:
                if message.topic == BROADCAST:
                    # To endpoints; in one process actors do not get it, either.
                    continue
                try:
                    own = self._own.get(message.topic)
                    # After a reconnection, before the actor's own subscription is there again: its order must hold.
                    sinks = self._route(message) if own is None else (own.stream.inbox,)
                    unsettled = offer(message, sinks)
                    if unsettled is not None:
                        self._let_wait(message, unsettled)
                except Exception as error:
                    self._broken(message, error)

    async def _take_slowly(self, stream: Stream) -> None:
        # One by one: what is not in the mailbox is not delivered.
        async for message in stream:
            if message.topic == BROADCAST:
                continue
            try:
                unsettled = offer(message, self._route(message))
            except Exception as error:
                self._broken(message, error)
                continue
            if unsettled is not None:
                await self._settle(message, unsettled)

    def _let_wait(self, message: Message, unsettled: Unsettled) -> None:
        if not unsettled.waiting:
            self._refused(message, unsettled.refused[0])
            return
        waiting = self._waiting.get(message.topic)
        if waiting is None:
            waiting = self._waiting[message.topic] = deque()
            # Not among the tasks that a shutdown ends: it ends with its actor.
            task = self._system.loop.create_task(self._settle_all(message.topic, waiting))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        waiting.append((message, unsettled))

    async def _settle_all(self, topic: str, waiting: deque[tuple[Message, Unsettled]]) -> None:
        while waiting:
            await self._settle(*waiting.popleft())
        del self._waiting[topic]

    async def _settle(self, message: Message, unsettled: Unsettled) -> None:
        try:
            await unsettled.settle(self._bus.settings.backpressure)
        except Refused as error:
            self._refused(message, error)
        except Exception as error:
            self._broken(message, error)

    def _broken(self, message: Message, error: Exception) -> None:
        """An error that nobody expects concerns its message alone: a dead letter, and an error for who asks."""
        address = message.topic.removeprefix(ENDPOINT_PREFIX)
        log.error("message %s to %s is a dead letter: %s", message.id, address, describe(error), exc_info=error)
        self._system.bury(message, address, Cause.HANDLER_FAILED, f"on its way in: {describe(error)}", error)
        if message.type is MessageType.REQUEST:
            self._system.background(self._bus.respond_error(message, error))

    def _refused(self, message: Message, error: Refused) -> None:
        """It is a dead letter. Who told it is elsewhere, and goes on; who asks gets the reason."""
        log.debug("%s: %s", message.id, error)
        if message.type is MessageType.REQUEST:
            self._system.background(self._bus.respond_error(message, error))
