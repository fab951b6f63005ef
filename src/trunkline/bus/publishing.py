"""Publishing: the first layer of the bus. The short cut for the plainest message is here; the rest is in Outgoing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Unpack

import msgspec

from trunkline import codec
from trunkline.brokers.broker import UNNUMBERED, Broker, Lane
from trunkline.bus.outgoing import Outgoing
from trunkline.bus.pipeline import Pipeline
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.route import Route, offer
from trunkline.errors import HubError, InvalidPayload, MessageTooLarge, PartlyRefused, Refused
from trunkline.hooks.hook import Hook, openers
from trunkline.message import Fields, Message, MessageType
from trunkline.settings import Settings
from trunkline.topic import BROADCAST, endpoint

RAW = codec.RAW
encode = codec.encode


class Publishing:
    def __init__(self, broker: Broker, name: str, settings: Settings | None, hooks: Iterable[Hook]) -> None:
        self.name = name
        self.broker = broker
        self.settings = settings or broker.settings
        self._out = Outgoing(broker, name, self.settings, hooks)
        self._openers = openers(self._out.hooks)
        self.opens = bool(self._openers)
        """Whether what comes in must be opened by a hook."""
        # For the short cut of `publish`, bound once. Without routes every message goes the whole way.
        self._routes: Mapping[str, Route] = {} if self._out.hooks else broker.routes
        self.lanes: Mapping[str, Lane] = {} if self._out.hooks else broker.lanes
        self.time_ns = broker.world.time_ns
        self.ids = self._out.ids
        self._sequence = broker.sequence
        self._remember = self._out.history.add
        self._content_type = self.settings.content_type
        self.small = min(self.settings.history.max_payload_bytes, self.settings.max_message_bytes)

    async def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Publish to everyone whose pattern matches; return the message's id.

        In memory, the message is in the inboxes when this returns. On a durable topic it is on disk, too; cancelled
        before that, it may or may not have been published. Order is kept per publisher, topic and priority.
        Waits where a full inbox has the policy `block`; raises Refused if a hook, a limit or a policy says no.
        Cancelled while waiting, the message is dropped where it still waited.
        """
        # The short cut: no field set, no hook, small payload, topic known. Every nanosecond here is in the benchmarks.
        route = self._routes.get(topic)
        if route is None or fields:
            if fields or (lane := self.lanes.get(topic)) is None:
                return await self._out.launch(self.message(topic, payload, **fields))
            if not lane.swift or payload.__class__ is not bytes or len(payload) > self.small:
                return await self._store(lane, topic, payload)
            now_ns = self.time_ns()
            ids = self.ids
            message_id = (next(ids.block, None) or ids.open(now_ns)) if now_ns <= ids.ends_ns else ids.open(now_ns)
            message = Message(message_id, topic, payload, now_ns, UNNUMBERED, self.name, RAW)
            if not lane.put_now(message):
                return await self._store_message(lane, message)
            out = self._out
            out.total += 1
            self._remember(message)
            if not lane.heard:
                out.unrouted += 1
            return message_id
        if payload.__class__ is bytes:
            body: Any = payload
            content_type = RAW
        else:
            body, content_type = encode(payload, self._content_type)
        if len(body) > self.small:
            return await self._out.launch(self.message(topic, payload))
        now_ns = self.time_ns()
        ids = self.ids
        message_id = (next(ids.block, None) or ids.open(now_ns)) if now_ns <= ids.ends_ns else ids.open(now_ns)
        sequence = self._sequence
        sequence.last = seq = sequence.last + 1
        message = Message(message_id, topic, body, now_ns, seq, self.name, content_type)
        route.published += 1
        self._out.total += 1
        self._remember(message)
        full: list[Inbox] | None = None
        for inbox in route.plain:
            queue = inbox.queue
            if len(queue) < inbox.room:
                inbox.books.accepted += 1
                queue.append(message)
                if inbox.sleepers:
                    inbox.wake()
            elif full is None:
                full = [inbox]
            else:
                full.append(inbox)
        if full is not None or not route.all_plain:
            if not route.heard:
                self._out.unrouted += 1
            unsettled = offer(message, (*(full or ()), *route.special))
            if unsettled is not None:
                await unsettled.settle(self.settings.backpressure)
        return message_id

    def pipeline(self, in_flight: int = 1000) -> Pipeline:
        """Publish many without waiting for each: `async with bus.pipeline() as pipe: await pipe.publish(…)`."""
        return Pipeline(self, in_flight)

    def count_stored(self, messages: Sequence[Message]) -> None:
        """A pipeline's messages are stored and handed out."""
        self._out.total += len(messages)
        for message in messages:
            self._out.history.remember(message)
        lane = self.lanes.get(messages[0].topic)
        if lane is not None and not lane.heard:
            self._out.unrouted += len(messages)

    def refuse(self, message: Message, error: BaseException) -> None:
        self._out.refuse(message, error)

    async def _store(self, lane: Lane, topic: str, payload: object) -> str:
        """The short cut for a topic that is stored first."""
        body: Any
        body, content_type = (payload, RAW) if payload.__class__ is bytes else encode(payload, self._content_type)
        out = self._out
        if len(body) > self.small:
            return await out.launch(self.message(topic, payload))
        now_ns = self.time_ns()
        message = Message(self.ids.next(now_ns), topic, body, now_ns, UNNUMBERED, self.name, content_type)
        return await self._store_message(lane, message)

    async def _store_message(self, lane: Lane, message: Message) -> str:
        out = self._out
        try:
            failures = await lane.put(message)
        except (Refused, HubError) as error:
            out.refuse(message, error)
            raise
        out.total += 1
        self._remember(message)
        if not lane.heard:
            out.unrouted += 1
        if failures:
            raise failures[0][1]
        return message.id

    async def publish_many(self, topic: str, payloads: Iterable[object], **fields: Unpack[Fields]) -> list[str]:
        """Publish several payloads on one topic, in order, as one batch; return their ids.

        Raises PartlyRefused, with what was refused, if only some were.
        """
        values = payloads if isinstance(payloads, (list, tuple)) else list(payloads)
        route = self._routes.get(topic)
        lane = self.lanes.get(topic)
        if fields or not values or (lane is None and (route is None or route.special)):
            return await self._publish_batch(topic, values, fields)
        kind = RAW
        bodies: Sequence[Any] = values
        if set(map(type, values)) != {bytes}:
            encoded = [encode(value, self._content_type) for value in values]
            bodies = [body for body, _ in encoded]
            kind = encoded[0][1]
            if any(other != kind for _, other in encoded):
                return await self._publish_batch(topic, values, fields)
        if max(map(len, bodies)) > self.small:
            return await self._publish_batch(topic, values, fields)
        now_ns = self.time_ns()
        name = self.name
        ids = self.ids.take(len(bodies), now_ns)
        if lane is not None:
            unnumbered = repeat(UNNUMBERED)
            columns = ids, repeat(topic), bodies, repeat(now_ns), unnumbered, repeat(name), repeat(kind)
            await self._store_many(lane, list(map(Message, *columns)))
            return ids
        assert route is not None
        first = self._sequence.last + 1
        batch = [
            Message(message_id, topic, body, now_ns, seq, name, kind)
            for message_id, body, seq in zip(ids, bodies, range(first, first + len(ids)), strict=True)
        ]
        self._sequence.last += len(batch)
        self._out.total += len(batch)
        self._out.history.add_many(batch)
        if not route.heard:
            self._out.unrouted += len(batch)
        try:
            await self.broker.publish(batch)
        except PartlyRefused as error:
            self._out.refuse_unheard([message for message, _ in error.refused], error)
            raise
        except asyncio.CancelledError as error:
            self._out.refuse_unheard(batch, error)
            raise
        return ids

    async def _store_many(self, lane: Lane, batch: list[Message]) -> None:
        out = self._out
        try:
            failures = await lane.put_many(batch, alike=True)
        except PartlyRefused as error:
            for message, why in error.refused:
                out.refuse(message, why)
            raise
        except HubError as error:
            for message in batch:
                out.refuse(message, error)
            raise
        except Refused as error:
            for message in batch:
                out.refuse(message, error)
            if len(batch) == 1:
                raise
            raise PartlyRefused([(message, error) for message in batch], len(batch)) from error
        out.total += len(batch)
        out.history.add_many(batch)
        if not lane.heard:
            out.unrouted += len(batch)
        if failures:
            raise failures[0][1] if len(batch) == 1 else PartlyRefused(failures, len(batch))

    async def _publish_batch(self, topic: str, values: Iterable[object], fields: Fields) -> list[str]:
        batch = [self.message(topic, value, **fields) for value in values]
        if batch:
            await self._out.send(batch)
        return [message.id for message in batch]

    async def post(self, message: Message) -> str:
        """Publish a message built by hand, by its type; return its id.

        SUBSCRIBE and UNSUBSCRIBE are for the bus itself: they link their topic to the endpoint that sends them, and
        undo that.
        """
        message = self._out.stamp(message)
        if message.type is MessageType.SUBSCRIBE:
            self.link(message.topic, message.sender)
        elif message.type is MessageType.UNSUBSCRIBE:
            self.unlink(message.topic, message.sender)
        else:
            return await self._out.launch(message)
        self._out.history.remember(message)
        return message.id

    async def post_many(self, messages: Sequence[Message]) -> None:
        """Publish messages built by hand, all of one topic, priority and ttl, in order, as one batch.

        Raises PartlyRefused, with what was refused, if only some were.
        """
        stamped: list[Message] = []
        refused: list[tuple[Message, Exception]] = []
        for message in messages:
            try:
                stamped.append(self._out.stamp(message))
            except MessageTooLarge as error:
                refused.append((message, error))
        if stamped:
            try:
                await self._out.send(stamped)
            except PartlyRefused as error:
                refused += error.refused
        if refused:
            raise PartlyRefused(refused, len(messages))

    def message(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Message:
        """A message with id, time and sender, not yet published: hand it to `post`. Raises MessageTooLarge."""
        now_ns = self.time_ns()
        stamped: Fields = {"sender": self.name, "id": self.ids.next(now_ns), **fields}
        if payload.__class__ is not bytes and "content_type" not in fields:
            stamped["content_type"] = self._content_type
        return self._out.weigh(Message(topic=topic, payload=payload, timestamp_ns=now_ns, **stamped))

    def opened(self, message: Message) -> Message:
        """A message as the handlers of this bus get it: what its hooks had done to it is undone.

        For one from the history, the dead letters or the journal. Raises InvalidPayload if it cannot be opened.
        """
        for opener in self._openers:
            message = opener(message)
        return message

    def _readable(self, message: Message) -> Message:
        """As `opened`; one that cannot be opened says why when it is decoded."""
        try:
            return self.opened(message)
        except InvalidPayload as error:
            return msgspec.structs.replace(message, encoding=f"{codec.UNOPENED}{error}")

    def reopened(self, message: Message) -> Message:
        """As `opened`, to be published again under another header; one that cannot be opened goes on as it is."""
        try:
            return self.opened(message)
        except InvalidPayload:
            return message

    async def send(self, to: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Send to the endpoint `to`; return the message's id."""
        direct: Fields = {"type": MessageType.DIRECT, "recipient": to, **fields}
        return await self._out.launch(self.message(endpoint(to), payload, **direct))

    async def broadcast(self, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Send to all endpoints; return the message's id."""
        return await self.publish(BROADCAST, payload, **fields)

    async def flush(self) -> None:
        """Return when everything published so far is with the broker."""
        await self.broker.flush()

    def link(self, pattern: str, name: str) -> bool:
        """What matches `pattern` also goes to the endpoint `name`; False if that was so already."""
        return self.broker.link(pattern, endpoint(name))

    def unlink(self, pattern: str, name: str) -> bool:
        """Undo `link`; False if there was none."""
        return self.broker.unlink(pattern, endpoint(name))
