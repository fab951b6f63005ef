"""The bus people program against: publishing, requesting and handling, and on top of them life and observation."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from trunkline.brokers.broker import Broker, Feature
from trunkline.bus import replay
from trunkline.bus.dispatcher import Handler, at_work
from trunkline.bus.handling import Handling
from trunkline.bus.observe import Explanation, Lazy, Stats
from trunkline.bus.outgoing import State
from trunkline.bus.replay import Replayed
from trunkline.bus.requesting import MAX_DETAIL
from trunkline.bus.threads import ThreadDoor
from trunkline.delivery.dead_letters import Cause, DeadLetter, DeadLetters
from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.requests import Orphan
from trunkline.delivery.stream import Stream
from trunkline.errors import HubUnavailable, TrunklineError
from trunkline.hooks.hook import Hook
from trunkline.message import Message, MessageType
from trunkline.settings import Settings
from trunkline.topic import DEAD_PREFIX, EVERYTHING

log = logging.getLogger("trunkline.bus")


class Unfinished(msgspec.Struct, frozen=True):
    """A message that a closing bus could not finish, and what became of it."""

    message: Message
    outcome: Outcome


class Bus(Handling):
    """Publish, send, request, subscribe, handle. Used from one event loop; other threads use `from_thread`."""

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "bus",
        settings: Settings | None = None,
        hooks: Iterable[Hook] = (),
        owns_broker: bool = False,
    ) -> None:
        super().__init__(broker, name, settings, hooks)
        self._owns_broker = owns_broker
        self._notices: set[asyncio.Task[None]] = set()
        self._door: ThreadDoor | None = None
        self._closing: asyncio.Task[list[Unfinished]] | None = None
        self._hurry = asyncio.Event()
        broker.roster.announcers.append(self._announce_dead)
        broker.finders.append(self._out.history.find)
        for hook in self._out.hooks:
            if (attach := getattr(hook, "attach", None)) is not None:
                attach(self)
            if (handling := getattr(hook, "handling", None)) is not None:
                self.arounds.append(handling)

    def from_thread(self) -> ThreadDoor:
        """The door for other threads. Call this in the event loop, hand the door to the threads."""
        if self._door is None:
            self._door = ThreadDoor(self.name, self.publish, asyncio.get_running_loop())
        return self._door

    # Observation

    def stats(self) -> Stats:
        """How the bus is doing, in this process; cheap enough to call at any time."""
        out = self._out
        total = out.total
        accounts = self.broker.roster.accounts()
        account = sum(accounts.values(), Account())
        return Stats(
            total_messages=total,
            total_failed=out.refusals.total + account.dead,
            total_refused=out.refusals.total,
            unrouted=out.unrouted,
            pending=account.in_flight,
            dead_letters=len(self.dead_letters),
            orphans=len(self._requests.orphans),
            open_requests=len(self._requests),
            subscribers=len(self.broker.roster),
            account=account,
            per_topic=Lazy(self.broker.published_by_topic),
            per_sender=Lazy(lambda: out.senders.counts(total)),
        )

    def accounts(self) -> Mapping[str, Account]:
        """The books of each subscriber in this process; those that have left are summed up under the empty name.

        Of a hub as a whole, `trunkline status` shows the sum.
        """
        return self.broker.roster.accounts()

    def pending(self) -> int:
        """How many deliveries are in flight: in inboxes, waiting for room or the next attempt, being handled."""
        return self.broker.roster.pending()

    def history(self, limit: int | None = None, topic: str | None = None) -> list[Message]:
        """The last messages accepted, oldest first; `topic` is a pattern."""
        return self._out.history.last(limit, topic)

    @property
    def dead_letters(self) -> DeadLetters:
        """What could not be handled, with cause, attempts and traceback; replay it from here."""
        return self.broker.roster.dead_letters

    async def explain(self, message_id: str) -> Explanation:
        """Where a message went, and why: one outcome for each subscriber, wherever it is.

        Through a hub any client may ask that has a right on the topic; the hub asks those who have the message.
        """
        refusal = self._out.refusals.find(message_id)
        note = ""
        known = self._find(message_id)
        try:
            message, outcomes = await self.broker.explain(message_id, known)
        except HubUnavailable as error:
            message, outcomes = known, [] if known is None else self.broker.roster.outcomes(known)
            note = f"{error}: this is what is known in this process"
        if refusal is not None:
            outcomes.append(refusal)
        if not note and message is None and not outcomes:
            note = "not known here: never accepted by this bus, or longer ago than it remembers"
        elif not note and not outcomes:
            note = "accepted, and nobody subscribed to its topic at the time"
        return Explanation(message_id, message or known, tuple(outcomes), note)

    def _find(self, message_id: str) -> Message | None:
        if (message := self._out.history.find(message_id)) is not None:
            return message
        for letter in self.dead_letters.find(message_id=message_id):
            return letter.message
        waiting = (message for inbox in self.broker.roster for message in inbox.messages())
        return next((message for message in waiting if message.id == message_id), None)

    async def last(self, topic: str, *, before: int | None = None) -> Message | None:
        """The last message accepted on a stored topic, below the number `before` if given; None if none is stored.

        Everything whose publish has returned is seen. Raises TopicNotStored if the journal does not store the topic,
        Unsupported if there is no journal, and JournalDamaged if the message cannot be read.
        """
        message = await self.broker.require_store().last(topic, before)
        return message if message is None else self._readable(message)

    async def forget_durable(self, name: str) -> bool:
        """Remove the durable subscription of this name or group for good; False if there is none.

        Its subscribers must have left. Retention keeps nothing for it any more.
        """
        return await self.broker.require_store(Feature.DURABLE).forget(name)

    # Replay

    async def replay_dead(
        self,
        *,
        message_id: str | None = None,
        subscriber: str | None = None,
        cause: Cause | None = None,
        topic: str = EVERYTHING,
        per_s: float | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Give dead letters back to the subscribers that failed: all, or those chosen, at most `per_s` a second.

        With a journal, also those from before the last restart. A dry run only says which.
        """
        return await replay.replay_dead(
            self, message_id=message_id, subscriber=subscriber, cause=cause, topic=topic, per_s=per_s, dry_run=dry_run
        )

    async def replay(
        self,
        source: str | Path,
        pattern: str = EVERYTHING,
        *,
        first: int = 1,
        last: int | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        to: str | None = None,
        per_s: float | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Publish again what a journal holds: a range of numbers or of time, on the topics it had, or below `to`.

        Each is a message of its own, with the old id as correlation id and the old number in the header
        `replayed-from`. At most `per_s` a second. A dry run only says which.
        """
        return await replay.replay(
            self,
            source,
            pattern,
            first=first,
            last=last,
            since=since,
            until=until,
            to=to,
            per_s=per_s,
            dry_run=dry_run,
        )

    def replay_orphans(self, *, request_id: str | None = None, max_age_s: float = math.inf) -> Replayed:
        """Take up orphans that a journal has kept: a request that waits gets its answer, the rest can be claimed."""
        known = {orphan.message.seq for orphan in self._requests.orphans}
        ids: list[str] = []
        for message, why, _ in self._stored_orphans(max_age_s):
            if message.seq in known or (request_id is not None and message.request_id != request_id):
                continue
            ids.append(message.id)
            self._requests.take_up(Orphan(message, why, self.now()))
        return Replayed(tuple(ids))

    def _announce_dead(self, letter: DeadLetter) -> None:
        """Tell whoever subscribes to `_dead.>`. The death of a notice is not announced again."""
        if letter.message.topic.startswith(DEAD_PREFIX) or self._out.state is State.CLOSED:
            return
        task = asyncio.get_running_loop().create_task(self._tell(f"{DEAD_PREFIX}{letter.message.topic}", letter))
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _tell(self, topic: str, letter: DeadLetter) -> None:
        try:
            if not self.broker.heard(topic):
                return
            # Payload, format and trace as they were; whom it was for and what it asked no longer count.
            notice = self.reopened(letter.message).replace(
                id="",
                topic=topic,
                type=MessageType.ERROR,
                sender=self.name,
                timestamp_ns=0,
                correlation_id=letter.message.id,
                headers={
                    "subscriber": letter.subscriber,
                    "cause": letter.cause.value,
                    "reason": letter.reason[:MAX_DETAIL],
                },
                recipient=None,
                request_id=None,
                reply_to=None,
                ttl_s=None,
                requires_ack=False,
                attempts=0,
            )
            await self.post(notice)
        except TrunklineError as error:
            log.warning("nobody could be told of the dead letter %s: %s", letter.message.id, error)

    # Life

    async def __aenter__(self) -> Self:
        self._recall_orphans()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, drain_s: float | None = None) -> list[Unfinished]:
        """Take nothing new, let handlers finish for up to `drain_s` seconds, stop; return what was not finished.

        Handlers may publish and ask while they finish. Closing twice is fine, and gives the same answer. Cancelled, it
        stops waiting and closes at once.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(self.settings.drain_s if drain_s is None else drain_s))
        try:
            return await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._hurry.set()
            # A handler that closes its own bus is stopped by that: it must not wait for who waits for it.
            if not at_work.get():
                await self._closing
            raise

    async def _close(self, drain_s: float) -> list[Unfinished]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_s
        if self._door is not None:
            await self._door.aclose(drain_s)
        self._routes = {}
        self.lanes = {}
        self._out.state = State.DRAINING
        # Held here: a consumer that comes to the end lets go of its stream, which is then ours to close.
        streams = list(self._streams)
        drain = asyncio.create_task(self._drain(streams))
        hurry = asyncio.create_task(self._hurry.wait())
        left_s = max(0.0, deadline - loop.time())
        await asyncio.wait([drain, hurry], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        await _cancel([drain, hurry])
        if drain.done() and not drain.cancelled() and (error := drain.exception()) is not None:
            log.error("closing went wrong, going on with it", exc_info=error)
        self._out.state = State.CLOSED
        parts: list[Handler | Stream] = [*self._handlers, *streams]
        left = [(part, message) for part in parts for message in part.unfinished()]
        for part in parts:
            await part.aclose()
        await _cancel(self._notices)
        self._end_requests()
        self.broker.roster.announcers.remove(self._announce_dead)
        self.broker.finders.remove(self._out.history.find)
        if self._owns_broker:
            await self.broker.aclose()
        if left:
            log.warning("closed with %d messages unfinished: aclose() returns them", len(left))
        now_ns = self.time_ns()
        return [
            Unfinished(
                message,
                Outcome(part.name, Fate.IN_FLIGHT, "stays in the journal, and comes again", now_ns)
                if part.durable
                else Outcome(part.name, Fate.DROPPED, "the bus closed before it was handled", now_ns),
            )
            for part, message in left
        ]

    async def quiet(self) -> None:
        """Return when no handler of this bus has anything to do: all that has come to them is handled or dead.

        In memory that is all that was published so far; what a hub has may still be on its way.
        """
        # What one handler finishes may be work for another: done when all are quiet at once.
        while any(handler.busy for handler in self._handlers):
            await asyncio.gather(*(handler.quiet() for handler in self._handlers))

    async def _drain(self, streams: list[Stream]) -> None:
        if self._owns_broker:
            if self.broker.store is not None:
                self.broker.store.pause()
        else:
            # Other buses go on publishing: without this there would be no end.
            for handler in self._handlers:
                handler.stop()
        await self.quiet()
        await asyncio.gather(*self._notices)
        for stream in streams:
            stream.stop()
        await asyncio.gather(*(stream.drained() for stream in streams))


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
