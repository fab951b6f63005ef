"""The engine: the broker a hub runs inside, for what a switch cannot do: groups, durable topics and subscriptions.

It is the broker people use in one process, in memory or with a journal: leases, cursors and hand-over are the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import force_setattr

from trunkline.brokers.broker import UNNUMBERED, Broker
from trunkline.brokers.turn import Failures
from trunkline.errors import InvalidPayload, NotStored, PartlyRefused, Refused
from trunkline.hub.parcel import Parcel
from trunkline.message import Message

log = logging.getLogger("trunkline.hub")


class Engine:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._lines: dict[str, deque[tuple[Parcel, list[Message]]]] = {}
        """By topic: batches that wait behind one that a full inbox holds up."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.turn_end: Callable[[], None] = lambda: None
        """Called when something was handed out that nobody else would send off."""

    def takes(self, topic: str) -> bool:
        return bool(self.broker.subscribers(topic))

    def stores(self, topic: str) -> bool:
        return self.broker.lane(topic) is not None

    def names(self, topic: str) -> list[str]:
        return self.broker.subscribers(topic)

    def link(self, pattern: str, topic: str) -> None:
        self.broker.link(pattern, topic)

    def unlink(self, pattern: str, topic: str) -> None:
        self.broker.unlink(pattern, topic)

    def store(self, parcel: Parcel, hand_out: Callable[[Parcel], None]) -> None:
        lane = self.broker.lane(parcel.topic)
        assert lane is not None
        messages = self._open(parcel)
        if messages is None:
            return
        known = self.broker.find(messages[0].id) if parcel.again else None
        if known is not None and known.topic == parcel.topic:
            # A batch is stored whole or not at all: it was, before the connection ended.
            parcel.first = known.seq
            return
        for message in messages:
            force_setattr(message, "seq", UNNUMBERED)
        parcel.waiting += 1

        def stored(done: asyncio.Future[Failures]) -> None:
            if done.cancelled():
                parcel.fail(-1, "not_stored", "the hub is closing")
            elif (error := done.exception()) is not None:
                parcel.fail(-1, "not_stored", error.why if isinstance(error, NotStored) else str(error))
            else:
                parcel.first = messages[0].seq
                _note(parcel, messages, done.result())
                hand_out(parcel)
            parcel.done()
            self.turn_end()

        asyncio.ensure_future(lane.put_many(messages, alike=False)).add_done_callback(stored)

    def take(self, parcel: Parcel) -> None:
        messages = self._open(parcel)
        if messages is None:
            return
        parcel.waiting += 1
        line = self._lines.get(parcel.topic)
        if line is not None:
            line.append((parcel, messages))
            return
        self._lines[parcel.topic] = deque([(parcel, messages)])
        task = asyncio.ensure_future(self._publish(parcel.topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open(self, parcel: Parcel) -> list[Message] | None:
        try:
            return parcel.open()
        except InvalidPayload as error:
            parcel.fail(-1, "malformed", str(error))
            return None

    async def _publish(self, topic: str) -> None:
        """One after another, as a full inbox may hold one up."""
        line = self._lines[topic]
        while line:
            parcel, messages = line[0]
            try:
                await self.broker.publish(messages)
            except PartlyRefused as error:
                _note(parcel, messages, error.refused)
            except Refused as error:
                _note(parcel, messages, [(messages[0], error)])
            except Exception:
                # The hub goes on, and the publisher is told.
                log.exception("a batch on %s could not be handed out", topic)
                parcel.fail(-1, "internal", "the hub could not hand it out: its log says why")
            line.popleft()
            parcel.done()
            self.turn_end()
        del self._lines[topic]

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker.aclose()


def _note(parcel: Parcel, messages: list[Message], failures: Iterable[tuple[Message, Exception]]) -> None:
    place = {message.seq: index for index, message in enumerate(messages)}
    for message, error in failures:
        parcel.fail(place.get(message.seq, -1), "refused", str(error), error=type(error).__name__)
