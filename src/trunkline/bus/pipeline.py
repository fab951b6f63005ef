"""A pipeline: many publishes under way at once from one place, without a task for each.

`await bus.publish` on a durable topic waits for the disk. A pipeline goes on meanwhile, with a bounded number of
messages between it and the disk, and says at its end what became of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from trunkline import codec
from trunkline.brokers.broker import UNNUMBERED
from trunkline.delivery.pending import Failures
from trunkline.errors import PartlyRefused, Refused, UsageError
from trunkline.message import Fields, Message

if TYPE_CHECKING:
    from trunkline.bus.publishing import Publishing

RAW = codec.RAW
encode = codec.encode


class Pipeline:
    """`async with bus.pipeline() as pipe: await pipe.publish(…)`. When the block ends, everything is published.

    Leaving the block, and `flush`, raise PartlyRefused if something was not. Order is kept as by `bus.publish`.
    """

    def __init__(self, bus: Publishing, in_flight: int) -> None:
        if in_flight < 1:
            raise UsageError(f"a pipeline needs room for at least one message, not {in_flight}")
        self._bus = bus
        self._in_flight = in_flight
        self._again = in_flight // 2
        """Go on when so few are left: one wake-up for many."""
        self._name = bus.name
        self._begun = 0
        self._ended = 0
        self._told = 0
        self._refused: list[tuple[Message, Exception]] = []
        self.gone = False
        self._when_gone: list[Callable[[], object]] = []
        self._rooms: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def in_flight(self) -> int:
        """How many are not on disk yet."""
        return self._begun - self._ended

    async def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Begin to publish; return the message's id. Waits only while too many are under way."""
        bus = self._bus
        lane = bus.lanes.get(topic)
        if lane is None or fields:
            # Not stored, or not plain: as ever, and at its place in the order.
            await self._until(0)
            return await bus.publish(topic, payload, **fields)
        body: Any = payload
        content_type = RAW
        if payload.__class__ is not bytes:
            body, content_type = encode(payload, bus.settings.content_type)
        if len(body) > bus.settings.max_message_bytes:
            await self._until(0)
            return await bus.publish(topic, payload)
        now_ns = bus.time_ns()
        ids = bus.ids
        message_id = (next(ids.block, None) or ids.open(now_ns)) if now_ns <= ids.ends_ns else ids.open(now_ns)
        message = Message(message_id, topic, body, now_ns, UNNUMBERED, self._name, content_type)
        # Every nanosecond here is in the benchmarks: what comes after one of ours in the same turn is appended.
        pending = lane.turn.get(topic)
        if pending is not None and pending.owner is self:
            pending.messages.append(message)
        else:
            lane.post(message, self)
        self._begun = begun = self._begun + 1
        if begun - self._ended >= self._in_flight:
            await self._until(self._again)
        return message_id

    async def flush(self) -> None:
        """Return when everything so far is published; raise PartlyRefused if something was not."""
        await self._until(0)
        count, self._told = self._begun - self._told, self._begun
        refused, self._refused = self._refused, []
        if refused:
            raise PartlyRefused(refused, count)

    async def _until(self, waiting: int) -> None:
        """Return when no more than so many are under way. Several tasks may wait."""
        while self._begun - self._ended > waiting:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._rooms.append((waiting, room))
            await room

    # What the store tells

    def when_gone(self, callback: Callable[[], object]) -> None:
        self._when_gone.append(callback)

    def settled(self, messages: Sequence[Message], failures: Failures) -> None:
        """These are stored and handed out; some may have been refused by a subscriber."""
        self._bus.count_stored(messages)
        self._refused.extend(failures)
        self._done(len(messages))

    def failed(self, messages: Sequence[Message], error: Refused) -> None:
        """These could not be stored, and nobody has seen them."""
        for message in messages:
            self._bus.refuse(message, error)
            self._refused.append((message, error))
        self._done(len(messages))

    def _done(self, count: int) -> None:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
                return
        except asyncio.CancelledError:
            await self._give_up()
            raise
        # The block failed: that is what its caller must hear of.
        await self._give_up()

    async def _give_up(self) -> None:
        """Wait for no room any more. What is under way is stored, and its fates are on record."""
        self.gone = True
        for callback in self._when_gone:
            callback()
        self._when_gone.clear()
        await self._until(0)
