"""A pipeline: many concurrent publishes from one task.

`await bus.publish` on a durable topic waits for the disk. A pipeline continues meanwhile, with a bounded number of
messages that are not stored yet, and reports their outcome at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, Unpack

from trunkline import codec
from trunkline.bus.publisher import BusPublisher
from trunkline.delivery.pending import Failures
from trunkline.delivery.plain_run import NO_RUN, PlainRun
from trunkline.errors import PartlyRefused, Refused, UsageError
from trunkline.message import Fields, Message
from trunkline.unchecked import plain

RAW = codec.RAW
encode = codec.encode


class Pipeline:
    """`async with bus.pipeline() as pipe: await pipe.publish(…)`. When the block ends, everything is published.

    Leaving the block, and `flush`, raise PartlyRefused if messages were refused. Order is kept as by `bus.publish`.
    """

    def __init__(
        self,
        publish: Callable[..., Awaitable[str]],
        publisher: BusPublisher,
        name: str,
        in_flight: int,
        release: Callable[[], None],
    ) -> None:
        if in_flight < 1:
            raise UsageError(f"in_flight must be at least 1, not {in_flight}")
        self._publish = publish
        self._publisher = publisher
        self._release = release
        """Tells the broker to stop waiting for this pipeline."""
        self._in_flight = in_flight
        self._again = in_flight // 2
        """The number of remaining messages at which a waiting task continues: one wake-up for many messages."""
        self._name = name
        self._begun = 0
        self._ended = 0
        self._reported = 0
        self._refused: list[tuple[Message, Exception]] = []
        self.gone = False
        self._when_gone: list[Callable[[], object]] = []
        self._rooms: list[tuple[int, asyncio.Future[None]]] = []
        self._runs: dict[str, PlainRun] = {}
        """The runs to which messages are appended, by topic. A closed one is removed when its messages are stored."""

    @property
    def in_flight(self) -> int:
        """The number of messages that are not on disk yet."""
        return self._begun - self._ended

    async def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Start to publish; return the message's id. Waits only while `in_flight` messages are not on disk yet."""
        publisher = self._publisher
        known = publisher.known
        lane: Any = known.get(topic)
        """An OwnedLane if it is stored."""
        if lane is None or fields or not lane.stored:
            # The topic is not stored, or the message is not plain: publish it as usual, after the earlier messages.
            await self._until(0)
            return await self._publish(topic, payload, **fields)
        body: Any = payload
        content_type = RAW
        if payload.__class__ is not bytes:
            body, content_type = encode(payload, publisher.content_type)
        if len(body) > publisher.max_bytes or (publisher.lanes is not known and publisher.lanes.get(topic) is None):
            # Too large, or sampled.
            await self._until(0)
            return await self._publish(topic, payload)
        now_ns = publisher.time_ns()
        run = self._runs.get(topic, NO_RUN)
        at = len(run.payloads)
        if run.lane is not lane or at >= run.reserved or now_ns > run.ends_ns or run.content_type != content_type:
            posted = self._post(lane, body, content_type, now_ns)
            if posted is None:
                await self._until(0)
                return await self._publish(topic, payload)
            message_id = posted
        else:
            # As `PlainRun.append`, without a call.
            run.payloads.append(body)
            run.times.append(now_ns)
            message_id = run.ids[at]
        self._begun = begun = self._begun + 1
        if begun - self._ended >= self._in_flight:
            await self._until(self._again)
        return message_id

    def _post(self, lane: Any, body: bytes, content_type: str, now_ns: int) -> str | None:
        """Append a message to a run, or post it; return its id. None if the lane does not take it."""
        ids = self._publisher.ids
        run: PlainRun | None = self._runs.get(lane.topic)
        if run is not None and run.lane == lane and len(run) == run.room:
            lane.lengthen_run(run)
        if run is None or run.lane != lane or run.content_type != content_type or len(run) >= run.room:
            run = lane.owned_run(self._name, content_type, self)
        if run is not None:
            self._runs[lane.topic] = run
            return run.append(ids, body, now_ns)
        message = plain(ids.next(now_ns), lane.topic, body, now_ns, self._name, content_type)
        return message.id if lane.post(message, self) else None

    async def flush(self) -> None:
        """Return when everything so far is published; raise PartlyRefused if messages were refused."""
        await self._until(0)
        count, self._reported = self._begun - self._reported, self._begun
        refused, self._refused = self._refused, []
        if refused:
            raise PartlyRefused(refused, count)

    async def _until(self, waiting: int) -> None:
        """Return when at most `waiting` messages are not on disk yet. Several tasks may wait."""
        while self._begun - self._ended > waiting:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._rooms.append((waiting, room))
            await room

    # Callbacks of the store

    def when_gone(self, callback: Callable[[], object]) -> None:
        self._when_gone.append(callback)

    def settled(self, messages: Sequence[Message], failures: Failures) -> None:
        """Called when these messages are stored and delivered. `failures` are those that a subscriber refused."""
        self._publisher.settled(messages, failures)
        self._refused.extend(failures)
        self._done(messages[0].topic, len(messages))

    def settled_run(self, run: PlainRun) -> None:
        """As `settled`, for a run without failures."""
        self._publisher.settled_run(run)
        self._done(run.topic, len(run))

    def failed(self, messages: Sequence[Message], error: Refused) -> None:
        """Called when these messages could not be stored. They were not delivered."""
        self._publisher.failed(messages, error)
        self._refused.extend((message, error) for message in messages)
        self._done(messages[0].topic, len(messages))

    def _done(self, topic: str, count: int) -> None:
        run = self._runs.get(topic)
        if run is not None and not run.room:
            del self._runs[topic]
        self._ended += count
        self._when_gone.clear()
        if self._rooms:
            left = self._begun - self._ended
            waiters, self._rooms = self._rooms, []
            for waiting, room in waiters:
                if left > waiting:
                    self._rooms.append((waiting, room))
                elif not room.done():
                    room.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
                return
        except asyncio.CancelledError:
            await self._give_up()
            raise
        # The block failed: its caller must get that error.
        await self._give_up()

    async def _give_up(self) -> None:
        """Stop waiting for room or for a connection.

        Messages in flight are still stored, and their fates are recorded.
        """
        self.gone = True
        for callback in self._when_gone:
            callback()
        self._when_gone.clear()
        self._release()
        await self._until(0)
