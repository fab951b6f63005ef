"""Closing a bus: handlers finish the messages they have, up to a deadline, and the rest is returned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from trunkline.brokers.broker import Broker
from trunkline.bus.dispatcher import Handler
from trunkline.bus.handling import Handlers
from trunkline.bus.lifecycle import BusState, Lifecycle, at_work, cancel
from trunkline.bus.notices import DeadLetterNotices
from trunkline.delivery.fates import Fate, Outcome
from trunkline.delivery.stream import Stream
from trunkline.message import Message
from trunkline.plural import counted

log = logging.getLogger("trunkline.bus")

NOTICE_S = 1.0
"""This long after Ctrl-C, the log names the handlers and streams that the bus still waits for."""


class Unfinished(msgspec.Struct, frozen=True):
    """A message that a closing bus could not finish, and its fate."""

    message: Message
    outcome: Outcome


class Closing:
    """Closes the bus once, even if it is called several times."""

    def __init__(
        self, broker: Broker, owns_broker: bool, life: Lifecycle, handlers: Handlers, notices: DeadLetterNotices
    ) -> None:
        self._broker = broker
        self._owns_broker = owns_broker
        self._life = life
        self._handlers = handlers
        self._notices = notices
        self._task: asyncio.Task[list[Unfinished]] | None = None
        self._hurry = asyncio.Event()
        self.interrupted = False
        """Whether Ctrl-C or a cancellation closes the bus.

        Then handlers of durable subscriptions are not waited for, because their messages are redelivered.
        """

    def begin(
        self,
        drain_s: float,
        stop_publishing: Callable[[float], Awaitable[None]],
        closed: Callable[[], None],
        end: Callable[[], Awaitable[None]],
    ) -> asyncio.Task[list[Unfinished]]:
        if self._task is None:
            self._task = asyncio.create_task(self._run(drain_s, stop_publishing, closed, end))
        return self._task

    async def wait_for(self, closing: asyncio.Task[list[Unfinished]]) -> list[Unfinished]:
        try:
            return await asyncio.shield(closing)
        except asyncio.CancelledError:
            self._hurry.set()
            # A handler that closes its own bus must not be waited for: that would be a deadlock.
            if not at_work.get():
                await closing
            raise

    async def _run(
        self,
        drain_s: float,
        stop_publishing: Callable[[float], Awaitable[None]],
        closed: Callable[[], None],
        end: Callable[[], Awaitable[None]],
    ) -> list[Unfinished]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_s
        await stop_publishing(drain_s)
        self._life.enter(BusState.DRAINING)
        self._handlers.resume()
        # Referenced here, because a consumer that has finished drops its stream, and the stream must still be closed.
        streams = self._handlers.streams
        drain = asyncio.create_task(self._drain(streams))
        notice = loop.call_later(NOTICE_S, self._log_what_it_waits_for, drain_s) if self.interrupted else None
        hurry = asyncio.create_task(self._hurry.wait())
        left_s = max(0.0, deadline - loop.time())
        await asyncio.wait([drain, hurry], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if notice is not None:
            notice.cancel()
        await cancel([drain, hurry])
        if drain.done() and not drain.cancelled() and (error := drain.exception()) is not None:
            log.error("an error occurred while the bus was closing; closing continues", exc_info=error)
        self._life.enter(BusState.CLOSED)
        closed()
        parts: list[Handler | Stream] = [*self._handlers, *streams]
        left = [(part, message) for part in parts for message in part.unfinished()]
        for part in parts:
            await part.aclose()
        await self._notices.aclose()
        self._handlers.end_threads(wait=not self.interrupted)
        await end()
        if self._owns_broker:
            await self._broker.aclose()
        if left:
            log.warning("closed with %s unfinished: see the result of aclose()", counted(len(left), "message"))
        now_ns = self._broker.world.time_ns()
        return [
            Unfinished(
                message,
                Outcome(part.name, Fate.IN_FLIGHT, "stays in the journal and will be redelivered", now_ns)
                if part.durable
                else Outcome(part.name, Fate.DROPPED, "the bus closed before it was handled", now_ns),
            )
            for part, message in left
        ]

    def _log_what_it_waits_for(self, drain_s: float) -> None:
        names = sorted(handler.name for handler in self._handlers.waited_for(durable=False))
        if names:
            log.warning(
                "waiting up to %g s for handlers to finish: %s. Press Ctrl-C again to stop now",
                drain_s,
                ", ".join(names),
            )

    async def _drain(self, streams: list[Stream]) -> None:
        if self._owns_broker:
            if self._broker.store is not None:
                self._broker.store.pause()
        else:
            # Other buses continue to publish: without this, closing would never finish.
            self._handlers.stop()
        await self._handlers.quiet(durable=not self.interrupted)
        await self._notices.sent()
        for stream in streams:
            stream.stop()
        waited_for = [stream for stream in streams if not (self.interrupted and stream.durable)]
        await asyncio.gather(*(stream.drained() for stream in waited_for))
