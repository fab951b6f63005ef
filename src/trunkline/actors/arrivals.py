"""Arrivals: messages that reach a system from other processes, over a hub or an engine.

One subscription takes the messages for all actors, and never waits. A message for a full mailbox waits in line for
room; beyond the maximum number of waiting messages, further ones are dead letters. An actor whose senders should wait
(`overflow="block"`) has its own subscription at a hub, and so its own credit: messages that it has no room for stay at
the hub, and only its own senders wait.
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
"""The subscription of an actor that has ended is closed when no message has arrived for this long."""


class ActorSubscription:
    """One subscription, and the task that reads it."""

    def __init__(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self.stream = stream
        self.task = task
        self.wanted = True
        """Whether its actor exists."""

    async def aclose(self) -> None:
        """Close the subscription, after the messages that have arrived were taken."""
        self.stream.stop()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.stream.aclose()


class Arrivals:
    """The arrivals of one system. `route` returns the mailboxes for a message, and handles messages that have none."""

    def __init__(self, system: ActorSystem, route: Callable[[Message], tuple[Inbox, ...]]) -> None:
        self._system = system
        self._bus = system.bus
        self._route = route
        self._shared: list[ActorSubscription] = []
        self._own: dict[str, ActorSubscription] = {}
        """By topic: the subscriptions of actors whose senders wait."""
        self._waiting: dict[str, deque[tuple[Message, Unsettled]]] = {}
        """By topic: the messages that wait for room in a mailbox."""
        self._settling: set[asyncio.Task[None]] = set()

    async def open(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            self._shared.append(await self._line(pattern, self._take))

    async def attend(self, topic: str) -> None:
        """Open a subscription for one actor alone, if the broker makes publishers wait."""
        if (line := self._own.get(topic)) is not None:
            line.wanted = True
        elif Feature.BACKPRESSURE in self._bus.broker.features:
            self._own[topic] = await self._line(topic, self._take_slowly)

    def leave(self, topic: str) -> None:
        """Record that an actor has ended. Its subscription is closed later."""
        if (line := self._own.get(topic)) is not None:
            line.wanted = False
            self._system.background(self._retire(topic, line))

    async def _retire(self, topic: str, line: ActorSubscription) -> None:
        """Close the subscription of an actor that has ended. Messages that wait at the hub arrive first, and are
        handled like all messages to an unknown actor.
        """
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
            log.warning("actor system %s has stopped receiving messages: %s", self._system.name, error)
        except Exception as error:
            # Without this subscription no actor receives messages from other processes. The system stops, because it
            # would only seem to work.
            log.exception("actor system %s no longer receives messages on %s", self._system.name, stream.inbox.pattern)
            why = f"its subscription to {stream.inbox.pattern} ended: {describe(error)}"
            self._system.give_up(ActorFailed(self._system.name, 0, why))

    # Incoming messages

    async def _take(self, stream: Stream) -> None:
        async for batch in stream.batches():
            for message in batch:
                if message.topic == BROADCAST:
                    # Broadcasts are for endpoints. Within one process, actors do not get them, either.
                    continue
                try:
                    own = self._own.get(message.topic)
                    # After a reconnection, messages may arrive here before the subscription of the actor is restored.
                    # They go through its inbox, to keep the order.
                    sinks = self._route(message) if own is None else (own.stream.inbox,)
                    unsettled = offer(message, sinks)
                    if unsettled is not None:
                        self._let_wait(message, unsettled)
                except Exception as error:
                    self._broken(message, error)

    async def _take_slowly(self, stream: Stream) -> None:
        # One by one: a message that is not in the mailbox is not delivered.
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
            # Not one of the tasks that a shutdown cancels: it ends with its actor.
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
        """Handle an unexpected error.

        It affects only its message, which becomes a dead letter; a requester gets an error.
        """
        address = message.topic.removeprefix(ENDPOINT_PREFIX)
        log.error("message %s to %s is a dead letter: %s", message.id, address, describe(error), exc_info=error)
        self._system.bury(message, address, Cause.HANDLER_FAILED, f"on arrival: {describe(error)}", error)
        if message.type is MessageType.REQUEST:
            self._system.background(self._bus.respond_error(message, error))

    def _refused(self, message: Message, error: Refused) -> None:
        """Called for a refused message, which is already a dead letter.

        A requester gets the error; others are not notified.
        """
        log.debug("%s: %s", message.id, error)
        if message.type is MessageType.REQUEST:
            self._system.background(self._bus.respond_error(message, error))
